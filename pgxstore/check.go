package pgxstore

import (
	"context"
	"errors"
	"fmt"
)

// Check reports what would break the promise of the store, or keep it from working: a server that is a standby,
// settings of the session by which it may forget what it has acknowledged, a table that is missing, out of date, not
// logged or made with another PartitionDays, privileges to read and to write it that the role does not have, and
// partitions that nobody creates. It is to be called when the program starts.
func (t *Table) Check(ctx context.Context) error {
	var standby, readOnly, execute bool
	var synchronous, fsync, fullPages, persistence, denied string
	err := t.pool.QueryRow(ctx, `
SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool,
    current_setting('synchronous_commit'), current_setting('fsync'), current_setting('full_page_writes'),
    coalesce(c.relpersistence::text, ''), coalesce((SELECT string_agg(p, ', ')
        FROM unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) p WHERE NOT has_table_privilege(c.oid, p)), ''),
    coalesce((SELECT bool_and(has_function_privilege(f.oid, 'EXECUTE'))
        FROM pg_proc f WHERE f.pronamespace = c.relnamespace AND f.proname = $2::text), true)
FROM (SELECT) AS server LEFT JOIN pg_class c ON c.oid = to_regclass($1::text)`,
		t.opts.name(""), t.opts.claimFunction()).
		Scan(&standby, &readOnly, &synchronous, &fsync, &fullPages, &persistence, &denied, &execute)
	if err != nil {
		return fmt.Errorf("pgxstore: check: %w", err)
	}
	faults := []error{t.faults, t.checkVersion(ctx)}
	fault := func(found bool, text string) {
		if found {
			faults = append(faults, errors.New("pgxstore: "+text))
		}
	}
	fault(standby, "the server is a standby: it can neither claim nor know the last records")
	fault(readOnly, "default_transaction_read_only is on: nothing can be claimed or recorded")
	fault(synchronous == "off", "synchronous_commit is off: a crash loses the last records")
	fault(fsync == "off", "fsync is off: a crash of the machine loses records")
	fault(fullPages == "off", "full_page_writes is off: a crash of the machine may damage records")
	fault(persistence == "u", "the table is unlogged: a crash empties it")
	fault(denied != "", "the role may not "+denied+" in the table")
	fault(!execute, "the role may not EXECUTE the function "+t.opts.claimFunction())
	if t.opts.divided() && persistence != "" {
		faults = append(faults, t.checkPartitions(ctx))
	}
	return errors.Join(faults...)
}

func (t *Table) checkVersion(ctx context.Context) error {
	migrations := Migrations(t.opts)
	want := migrations[len(migrations)-1].Version
	have, err := t.version(ctx, t.pool)
	if err != nil {
		return fmt.Errorf("pgxstore: check: %w", err)
	}
	if have < want {
		return fmt.Errorf("pgxstore: table %s has version %d, not %d: call Migrate", t.opts.name(""), have, want)
	}
	return nil
}

// checkPartitions reports that from today on, in a row, no more than half of PartitionDays are ready.
func (t *Table) checkPartitions(ctx context.Context) error {
	now, partitions, err := t.partitions(ctx, t.pool)
	if err != nil {
		return fmt.Errorf("pgxstore: check: %w", err)
	}
	ready := 0
	for has(partitions, dayOf(now).AddDate(0, 0, ready), attached) {
		ready++
	}
	if 2*ready <= t.opts.PartitionDays {
		return fmt.Errorf("pgxstore: only %d partitions are ready: call Maintain every day", ready)
	}
	return nil
}
