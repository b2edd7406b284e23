package pgxstore

import "fmt"

// UnreadyTable is a finding of [Table.Check] about the table: stores do not work on it, or will not for long.
type UnreadyTable struct {
	Table   string // as SQL names it
	Problem string
	Remedy  string // such as "call Migrate"; empty if there is none that suits all cases
}

// Error describes the problem and its remedy.
func (e *UnreadyTable) Error() string {
	if e.Remedy == "" {
		return "pgxstore: " + e.Problem
	}
	return "pgxstore: " + e.Problem + ": " + e.Remedy
}

func (t *Table) unready(remedy, format string, args ...any) error {
	return &UnreadyTable{t.opts.name(""), fmt.Sprintf(format, args...), remedy}
}

// MissingPrivilege is a finding of [Table.Check] about the role of the pool.
type MissingPrivilege struct {
	Role      string
	Privilege string // such as "INSERT", or "OWNERSHIP"
	Object    string // what it is a privilege on, such as "table idempotency_records"
	For       string // what needs it: "the stores", "Store", "TxStore", "Maintain" or "TxStore and Maintain"
}

// Error describes the privilege and what needs it.
func (e *MissingPrivilege) Error() string {
	return fmt.Sprintf("pgxstore: role %s lacks %s on %s, which is needed for %s", e.Role, e.Privilege, e.Object, e.For)
}
