package idempotencytest

import (
	"context"
	"testing"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/cache"
)

// newTransactions returns the functions for transactions of a database in memory.
func newTransactions(rows *testservice.Rows) Transactions[*testservice.RowTx] {
	return Transactions[*testservice.RowTx]{
		Write:    func(ctx context.Context, tx *testservice.RowTx, name string) error { return tx.Write(ctx, name) },
		Count:    rows.Count,
		Begin:    rows.Begin,
		Commit:   func(ctx context.Context, tx *testservice.RowTx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx *testservice.RowTx) error { return tx.Rollback(ctx) },
	}
}

func TestTxSteps(t *testing.T) {
	for name, wrap := range map[string]func(idempotency.Store) idempotency.Store{
		"bare":   func(s idempotency.Store) idempotency.Store { return s },
		"sealed": func(s idempotency.Store) idempotency.Store { return mustSeal(t, s) },
		"cached": func(s idempotency.Store) idempotency.Store { return cache.New(s, cache.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			rows := testservice.NewRows()
			newStore := func(*testing.T) idempotency.Store { return wrap(testservice.NewRowStore(rows, "")) }
			RunSteps(t, newStore)
			RunTxSteps(t, newStore, newTransactions(rows))
		})
	}
}

// txStepBugs maps the name of a case of RunTxSteps to the bugs of testservice.RowStore that the case must find.
var txStepBugs = map[string][]string{
	"rows and result":              {"rows are lost", "rows are committed at once", "rows are committed alone"},
	"next attempt":                 {"rows are committed alone"},
	"first result":                 {"own result is returned", "second rows are committed"},
	"failed step":                  {"error commits", "error is wrapped", "result is stored first"},
	"interrupted step":             {"panic commits", "panic keeps the connection"},
	"any bytes":                    {"results are cut"},
	"overtaken owner":              {"not fenced"},
	"takeover of a step that runs": {"not fenced"},
	"after the end":                {"not fenced"},
	"forgotten record":             {"forgotten record is made again"},
	"renewals":                     {"renewal ends the transaction"},
	"several steps":                {"one step at most"},
	"ended context":                {"ended context is not seen", "end of the context undoes"},
	"end by the step":              {"Run can commit", "end by Run is not noticed"},
	"left behind":                  {"transaction is left open"},
	"other transactions":           {"other types are no error"},
	"concurrent operations":        {"concurrent steps are lost"},
	"transaction of the handler": {
		"joined result is stored at once", "joined transaction is committed at once", "joined result is lost",
	},
	"rollback by the handler":    {"joined result is stored at once"},
	"failed step of the handler": {"joined error is lost"},
	"overtaken handler":          {"joined transaction is not fenced"},
}

// TestTxStepBugs checks that each case finds its seeded bugs, and that each case has a bug.
func TestTxStepBugs(t *testing.T) {
	checkSeededBugs(t, txStepCases, txStepBugs, func(t *testing.T, bug, caughtBy string) error {
		return findTxStepViolations(t, bug, caughtBy)[caughtBy]
	})
}

// findTxStepViolations returns the violations of the named cases of RunTxSteps by a store with the given bug, by the
// names of the cases.
func findTxStepViolations(t *testing.T, bug string, names ...string) map[string]error {
	return findFailures(t, txStepCases, func() subject {
		rows := testservice.NewRows()
		return newTransactions(rows).newSubject(testservice.NewRowStore(rows, bug))
	}, names)
}
