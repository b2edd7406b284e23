package idempotencytest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Transactions gives [RunTxSteps] the functions of a handler for transactions of the type Tx, for example pgx.Tx or
// *sql.Tx.
type Transactions[Tx any] struct {
	// Write inserts a row with the given name in the transaction. The name has 36 characters. Several rows may have the
	// same name.
	Write func(ctx context.Context, tx Tx, name string) error

	// Count returns the number of committed rows with the given name. Count reads outside of any transaction, and must not
	// wait for open transactions.
	Count func(ctx context.Context, name string) (int, error)

	// Begin begins a transaction, as a handler does before calling DoInTx of package step.
	Begin func(ctx context.Context) (Tx, error)

	// Commit and Rollback end a transaction. Some subtests wrongly call them with the transaction of a step, although only
	// the store may end this transaction.
	Commit   func(ctx context.Context, tx Tx) error
	Rollback func(ctx context.Context, tx Tx) error
}

// RunTxSteps tests stores whose claims implement [idempotency.TxCheckpointer]. The functions in transactions act as a
// handler. As [Run] does, RunTxSteps calls newStore for each rule, and tests the rule in a subtest. The stores must
// also pass Run and [RunSteps], whose rules RunTxSteps does not repeat.
//
// The stores may share a database, and must keep their records in the database of the rows. The database may allow only
// a single transaction with writes at a time, as SQLite does.
func RunTxSteps[Tx any](t *testing.T, newStore func(*testing.T) idempotency.Store, transactions Transactions[Tx]) {
	_, claim, err := claimNewKey(t.Context(), newStore(t))
	if err != nil {
		t.Fatal(err)
	}
	_, ok := claim.(idempotency.TxCheckpointer)
	cleanUpClaim(t.Context(), claim)
	if !ok {
		t.Fatalf("a claim, a %T, does not implement idempotency.TxCheckpointer", claim)
	}
	runCases(t, "transactions", txStepCases, func(t *testing.T) subject { return transactions.newSubject(newStore(t)) })
}

// newSubject returns the subject of a case of RunTxSteps.
func (t Transactions[Tx]) newSubject(store idempotency.Store) subject {
	return subject{store: store, transactions: &anyTransactions{
		countRows:   t.Count,
		newVariable: func() any { return new(Tx) },
		loadValue:   func(v any) any { return *v.(*Tx) },
		writeRow:    func(ctx context.Context, v any, name string) error { return t.Write(ctx, *v.(*Tx), name) },
		beginTx: func(ctx context.Context) (any, error) {
			tx, err := t.Begin(ctx)
			return &tx, err
		},
		commitTx:   func(ctx context.Context, v any) error { return t.Commit(ctx, *v.(*Tx)) },
		rollbackTx: func(ctx context.Context, v any) error { return t.Rollback(ctx, *v.(*Tx)) },
	}}
}

// anyTransactions is [Transactions] without the type parameter Tx. The parameters v, and the results of newVariable and
// beginTx, are pointers to variables of type Tx.
type anyTransactions struct {
	newVariable          func() any
	loadValue            func(v any) any // returns the transaction in the variable
	writeRow             func(ctx context.Context, v any, name string) error
	beginTx              func(ctx context.Context) (any, error)
	commitTx, rollbackTx func(ctx context.Context, v any) error
	countRows            func(ctx context.Context, name string) (int, error)
}

// errRun is the error of Run in a failed step.
var errRun = errors.New("the step has failed")

var txStepCases = []testCase{{
	name: "rows and result",
	rule: "The rows of a step are invisible to others until the step ends. Then the rows and the result are permanent.",
	checkRule: func(t *trial) {
		own, row := t.claimKey(request), newRowName()
		t.commitStep(own, "book", "1", func(tx any) {
			t.writeRow(tx, row)
			t.writeRow(tx, row)
			t.checkRowCount(row, 0)
		})
		t.checkRowCount(row, 2)
		t.checkCheckpoints(own, map[string]string{"book": "1"})
	},
}, {
	name: "next attempt",
	rule: "A later attempt has the results of the earlier attempts, and can add more.",
	checkRule: func(t *trial) {
		own, row := t.claimKey(request), newRowName()
		t.commitRowStep(own, "book", row)
		t.releaseClaim(own)
		own = t.claimKey(request)
		t.checkCheckpoints(own, map[string]string{"book": row})
		t.commitRowStep(own, "ship", newRowName())
		t.releaseClaim(own)
		t.releaseClaim(t.claimKey(request))
		if n := len(t.listCheckpointNames(t.claimKey(request))); n != 2 {
			t.failf("the operation has %d checkpoints, want 2", n)
		}
		t.checkRowCount(row, 1)
	},
}, {
	name: "first result",
	rule: "The first result of a name stays. A second step with the name is rolled back, and returns the first result.",
	checkRule: func(t *trial) {
		own, first, second := t.claimKey(request), newRowName(), newRowName()
		t.commitRowStep(own, "book", first)
		stored, err := t.runTxStep(t.ctx, own, t.newStoreStep("book", func(tx any) ([]byte, error) {
			t.writeRow(tx, second)
			return []byte(second), nil
		}))
		t.checkSuccess("CheckpointTx", err)
		if string(stored) != first {
			t.failf("CheckpointTx returned the result %.99q, want %q", stored, first)
		}
		t.checkRowCount(first, 1)
		t.checkRowCount(second, 0)
	},
}, {
	name: "failed step",
	rule: "CheckpointTx returns the error of Run unchanged, and rolls rows and result back. The step may run again.",
	checkRule: func(t *trial) {
		own, row := t.claimKey(request), newRowName()
		_, err := t.runTxStep(t.ctx, own, t.newStoreStep("book", func(tx any) ([]byte, error) {
			t.writeRow(tx, row)
			return []byte("1"), errRun
		}))
		if err != errRun {
			t.failf("CheckpointTx returned %v, want the error of Run, unchanged", err)
		}
		t.checkRowCount(row, 0)
		t.checkCheckpoints(own, nil)
		t.commitRowStep(own, "book", row)
		t.checkRowCount(row, 1)
	},
}, {
	name: "interrupted step",
	rule: "After each panic or Goexit of Run, CheckpointTx rolls back, and frees the connection and all locks.",
	checkRule: func(t *trial) {
		own, row := t.claimKey(request), newRowName()
		for i := range 24 { // more steps than the store may have connections
			var ended sync.WaitGroup
			ended.Go(func() {
				defer func() { _ = recover() }()
				_, _ = t.runTxStep(t.ctx, own, t.newStoreStep("book", func(tx any) ([]byte, error) {
					if t.transactions.writeRow(t.ctx, tx, row) == nil && i%2 == 0 {
						panic(errRun)
					}
					runtime.Goexit()
					return nil, nil
				}))
			})
			ended.Wait()
		}
		t.checkRowCount(row, 0)
		t.checkCheckpoints(own, nil)
		t.commitRowStep(own, "book", row)
		t.checkRowCount(row, 1)
	},
}, {
	name: "any bytes",
	rule: "Checkpoints returns all stored bytes of a result, also for an empty result and 64 KiB.",
	checkRule: func(t *trial) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		own := t.claimKey(request)
		want := map[string]string{"none": "", "every": string(every), "large": strings.Repeat("x\x00", 32<<10)}
		for name, data := range want {
			t.commitStep(own, name, data, func(any) {})
		}
		t.checkCheckpoints(own, want)
	},
}, {
	name: "overtaken owner",
	rule: "An owner whose claim was taken over gets ErrClaimLost, and commits nothing.",
	checkRule: func(t *trial) {
		old, successor := t.claimAndTakeOver()
		t.checkTxFenced(old)
		t.commitRowStep(successor, "book", newRowName())
		t.checkTxFenced(old)
		t.releaseClaim(successor)
		t.checkTxFenced(old)
		t.checkTxFenced(successor)
	},
}, {
	name: "takeover of a step that runs",
	rule: "If another attempt takes over while a step runs, the rows are rolled back. Otherwise, the rows are committed.",
	checkRule: func(t *trial) {
		old, row := t.claimUntilLapsed(), newRowName()
		var successor beginResult
		_, err := t.runTxStep(t.ctx, old, t.newStoreStep("book", func(tx any) ([]byte, error) {
			t.writeRow(tx, row)
			// If the store locks the record, or allows only one writer at a time, Begin waits until the step ends.
			ctx, cancel := context.WithTimeout(t.ctx, time.Second)
			defer cancel()
			successor, _ = t.callBegin(ctx, withTakeOver(request))
			t.rememberClaim(successor)
			return []byte("1"), nil
		}))
		if successor.claim == nil {
			t.checkSuccess("CheckpointTx", err)
			t.checkRowCount(row, 1)
			return
		}
		if err == nil {
			t.failf("CheckpointTx returned nil, although another attempt had claimed the key")
		}
		t.checkRowCount(row, 0)
		t.checkCheckpoints(successor, nil)
		t.commitRowStep(successor, "book", newRowName())
	},
}, {
	name: "after the end",
	rule: "After Complete or Release, CheckpointTx returns ErrClaimLost, and commits nothing.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		t.completeClaim(own, newReceipt("done"))
		t.checkTxFenced(own)
		t.checkReplay(own, newReceipt("done"))

		t = t.withKey(newKey())
		own = t.claimKey(request)
		t.releaseClaim(own)
		t.checkTxFenced(own)
	},
}, {
	name: "forgotten record",
	rule: "If the record has expired, CheckpointTx returns ErrClaimLost, commits nothing and creates no record.",
	checkRule: func(t *trial) {
		t.checkTxFenced(t.claimUntilExpired())
		t.claimKey(otherRequest)
	},
}, {
	name: "renewals",
	rule: "Extend succeeds while a step runs longer than the lease, and does not make the transaction fail.",
	checkRule: func(t *trial) {
		own, row := t.claimKey(withDurations(request, short, long)), newRowName()
		t.commitStep(own, "book", "1", func(tx any) {
			t.writeRow(tx, row)
			for range 6 {
				time.Sleep(short / 2)
				t.checkSuccess("Extend", own.claim.Extend(t.ctx, long))
			}
			t.writeRow(tx, row)
		})
		t.checkRowCount(row, 2)
		t.extendLease(own, long)
		t.completeClaim(own, newReceipt("done"))
		t.checkReplay(own, newReceipt("done"))
	},
}, {
	name: "several steps",
	rule: "An operation can have both steps in transactions and other steps, one after the other.",
	checkRule: func(t *trial) {
		own, first, second := t.claimKey(request), newRowName(), newRowName()
		t.storeCheckpoint(own, "charge", "1", "1")
		t.commitRowStep(own, "book", first)
		t.storeCheckpoint(own, "ship", "2", "2")
		t.commitRowStep(own, "close", second)
		t.checkCheckpoints(own, map[string]string{"charge": "1", "book": first, "ship": "2", "close": second})
		t.checkRowCount(first, 1)
		t.checkRowCount(second, 1)
		t.completeClaim(own, newReceipt("done"))
		t.checkReplay(own, newReceipt("done"))
	},
}, {
	name: "ended context",
	rule: "If the context has ended, no step begins. If the context ends during a step, the step is still committed.",
	checkRule: func(t *trial) {
		own, row := t.claimKey(request), newRowName()
		ctx, cancel := context.WithCancel(t.ctx)
		stored, err := t.runTxStep(ctx, own, t.newStoreStep("book", func(tx any) ([]byte, error) {
			t.writeRow(tx, row)
			cancel()
			return []byte("1"), nil
		}))
		t.checkSuccess("CheckpointTx", err)
		if string(stored) != "1" {
			t.failf("CheckpointTx returned the result %.99q, want \"1\"", stored)
		}
		t.checkRowCount(row, 1)
		_, err = t.runTxStep(ctx, own, t.newStoreStep("late", func(tx any) ([]byte, error) {
			return nil, t.transactions.writeRow(t.ctx, tx, row)
		}))
		if err == nil {
			t.failf("CheckpointTx returned nil, although its context had ended before the call")
		}
		t.checkRowCount(row, 1)
		t.checkCheckpoints(own, map[string]string{"book": "1"})
	},
}, {
	name: "end by the step",
	rule: "If Run commits or rolls back, CheckpointTx fails, with the error of Run if Run has failed. If rows may be " +
		"permanent, CheckpointTx sets Escaped, and may return another error.",
	checkRule: func(t *trial) {
		for name, end := range map[string]func(context.Context, any) error{
			"Commit": t.transactions.commitTx, "Rollback": t.transactions.rollbackTx,
		} {
			for _, runErr := range []error{nil, errRun} {
				t := t.withKey(newKey())
				own, row := t.claimKey(request), newRowName()
				step := t.newStoreStep("book", func(tx any) ([]byte, error) {
					t.writeRow(tx, row)
					_ = end(t.ctx, tx)
					return []byte("1"), runErr
				})
				_, err := t.runTxStep(t.ctx, own, step)
				if err == nil || runErr != nil && err != runErr && !step.Escaped {
					t.failf("CheckpointTx returned %v after a Run that called %s and returned %v", err, name, runErr)
				}
				if !step.Escaped {
					t.checkRowCount(row, 0)
				}
				t.checkCheckpoints(own, nil)
				t.commitRowStep(own, "other", newRowName())
			}
		}
	},
}, {
	name: "left behind",
	rule: "After the end of a step, its transaction cannot be used.",
	checkRule: func(t *trial) {
		for _, runErr := range []error{nil, errRun} {
			own, row := t.withKey(newKey()).claimKey(request), newRowName()
			var usedTx any
			_, _ = t.runTxStep(t.ctx, own, t.newStoreStep("book", func(tx any) ([]byte, error) {
				usedTx = tx
				t.writeRow(tx, newRowName())
				return []byte("1"), runErr
			}))
			if t.transactions.writeRow(t.ctx, usedTx, row) == nil {
				t.failf("the transaction of a step has accepted a row after the end of the step, whose Run returned %v", runErr)
			}
			t.checkRowCount(row, 0)
		}
	},
}, {
	name: "other transactions",
	rule: "For transactions of another type, CheckpointTx returns errors.ErrUnsupported, and does not call Run.",
	checkRule: func(t *trial) {
		own := t.claimKey(request)
		for _, step := range []*idempotency.TxStep{{Var: new(struct{})}, {Tx: struct{}{}}} {
			step.Name, step.Timeout = "book", waitLimit
			step.Run = func() ([]byte, error) {
				t.failf("CheckpointTx has called Run, although the type of the transaction is unknown")
				return nil, nil
			}
			_, err := t.runTxStep(t.ctx, own, step)
			t.checkError("CheckpointTx", err, errors.ErrUnsupported)
		}
		t.checkCheckpoints(own, nil)
	},
}, {
	name: "concurrent operations",
	rule: "Steps of different operations may run concurrently. A step that the database refuses can be repeated.",
	checkRule: func(t *trial) {
		t.runConcurrently(12, func(t *trial, _ int) {
			own, row := t.claimKey(request), newRowName()
			t.waitUntil("the database accepts the step", func() bool {
				_, err := t.runTxStep(t.ctx, own, t.newStoreStep("book", func(tx any) ([]byte, error) {
					return []byte(row), t.transactions.writeRow(t.ctx, tx, row)
				}))
				return err == nil
			})
			t.checkCheckpoints(own, map[string]string{"book": row})
			t.completeClaim(own, newReceipt("done"))
			t.checkReplay(own, newReceipt("done"))
		})
	},
}, {
	name: "transaction of the handler",
	rule: "A result in a transaction of the handler becomes permanent, like the rows, when the handler commits.",
	checkRule: func(t *trial) {
		own, before, row := t.claimKey(request), newRowName(), newRowName()
		tx := t.beginTx()
		t.joinStep(own, tx, row)
		t.writeRow(tx, before)
		t.checkRowCount(row, 0)
		t.checkCheckpoints(own, nil)
		t.checkSuccess("Commit", t.transactions.commitTx(t.ctx, tx))
		t.checkRowCount(before, 1)
		t.checkRowCount(row, 1)
		t.checkCheckpoints(own, map[string]string{"book": row})
	},
}, {
	name: "rollback by the handler",
	rule: "If the handler rolls its transaction back, the result is not stored. The handler may repeat the transaction.",
	checkRule: func(t *trial) {
		own, undone, row := t.claimKey(request), newRowName(), newRowName()
		tx := t.beginTx()
		t.joinStep(own, tx, undone)
		t.checkSuccess("Rollback", t.transactions.rollbackTx(t.ctx, tx))
		t.checkRowCount(undone, 0)
		t.checkCheckpoints(own, nil)
		tx = t.beginTx()
		t.joinStep(own, tx, row)
		t.checkSuccess("Commit", t.transactions.commitTx(t.ctx, tx))
		t.checkRowCount(row, 1)
		t.checkCheckpoints(own, map[string]string{"book": row})
	},
}, {
	name: "failed step of the handler",
	rule: "In a transaction of the handler, CheckpointTx returns the error of Run unchanged, and no result is stored.",
	checkRule: func(t *trial) {
		own, tx := t.claimKey(request), t.beginTx()
		step := t.newJoinedStep("book", tx, func() ([]byte, error) { return []byte("1"), errRun })
		_, err := t.runTxStep(t.ctx, own, step)
		if err != errRun {
			t.failf("CheckpointTx returned %v, want the error of Run, unchanged", err)
		}
		t.checkSuccess("Rollback", t.transactions.rollbackTx(t.ctx, tx))
		t.checkCheckpoints(own, nil)
	},
}, {
	name: "overtaken handler",
	rule: "In a transaction of the handler, CheckpointTx fails if another attempt takes over before or during the step.",
	checkRule: func(t *trial) {
		old, successor := t.claimAndTakeOver()
		tx := t.beginTx()
		_, err := t.runTxStep(t.ctx, old, t.newJoinedStep("book", tx, func() ([]byte, error) { return []byte("1"), nil }))
		t.checkError("CheckpointTx", err, idempotency.ErrClaimLost)
		_ = t.transactions.rollbackTx(t.ctx, tx)
		t.checkCheckpoints(successor, nil)

		t = t.withKey(newKey())
		old, tx = t.claimUntilLapsed(), t.beginTx()
		_, err = t.runTxStep(t.ctx, old, t.newJoinedStep("book", tx, func() ([]byte, error) {
			ctx, cancel := context.WithTimeout(t.ctx, time.Second)
			defer cancel()
			successor, _ = t.callBegin(ctx, withTakeOver(request))
			t.rememberClaim(successor)
			return []byte("1"), nil
		}))
		if successor.claim == nil {
			t.checkSuccess("CheckpointTx", err)
			t.checkSuccess("Commit", t.transactions.commitTx(t.ctx, tx))
			return
		}
		if err == nil {
			t.failf("CheckpointTx returned nil, although another attempt had claimed the key")
		}
		_ = t.transactions.rollbackTx(t.ctx, tx)
		t.checkCheckpoints(successor, nil)
	},
}}

// newRowName returns a name for rows that no other case uses.
func newRowName() string { return uuid.NewString() }

// newStoreStep returns a step in a transaction that the store begins.
func (t *trial) newStoreStep(name string, run func(tx any) ([]byte, error)) *idempotency.TxStep {
	variable := t.transactions.newVariable()
	return &idempotency.TxStep{
		Name: name, Var: variable, Timeout: waitLimit, Run: func() ([]byte, error) { return run(variable) },
	}
}

// newJoinedStep returns a step in the transaction tx, which the handler has begun.
func (t *trial) newJoinedStep(name string, tx any, run func() ([]byte, error)) *idempotency.TxStep {
	return &idempotency.TxStep{Name: name, Tx: t.transactions.loadValue(tx), Timeout: waitLimit, Run: run}
}

// runTxStep calls CheckpointTx with step, and makes sure that a second call of Run fails.
func (t *trial) runTxStep(ctx context.Context, own beginResult, step *idempotency.TxStep) ([]byte, error) {
	run, calls := step.Run, 0
	step.Run = func() ([]byte, error) {
		if calls++; calls > 1 {
			return nil, fmt.Errorf("Run was called %d times", calls)
		}
		return run()
	}
	return own.claim.(idempotency.TxCheckpointer).CheckpointTx(ctx, step)
}

// commitStep runs a step with the result data in a transaction of the store.
func (t *trial) commitStep(own beginResult, name, data string, run func(tx any)) {
	stored, err := t.runTxStep(t.ctx, own, t.newStoreStep(name, func(tx any) ([]byte, error) {
		run(tx)
		return []byte(data), nil
	}))
	t.checkSuccess("CheckpointTx", err)
	if string(stored) != data {
		t.failf("CheckpointTx returned the result %.99q for the step %q, want %.99q", stored, name, data)
	}
}

// commitRowStep runs a step that writes one row, in a transaction of the store. The result is the name of the row.
func (t *trial) commitRowStep(own beginResult, name, row string) {
	t.commitStep(own, name, row, func(tx any) { t.writeRow(tx, row) })
	t.checkRowCount(row, 1)
}

// joinStep runs the step "book", which writes one row, in a transaction of the handler. The result is the name of the
// row.
func (t *trial) joinStep(own beginResult, tx any, row string) {
	stored, err := t.runTxStep(t.ctx, own, t.newJoinedStep("book", tx, func() ([]byte, error) {
		t.writeRow(tx, row)
		return []byte(row), nil
	}))
	t.checkSuccess("CheckpointTx", err)
	if string(stored) != row {
		t.failf("CheckpointTx returned the result %.99q, want %.99q", stored, row)
	}
}

// writeRow writes a row in the transaction tx.
func (t *trial) writeRow(tx any, row string) {
	t.checkSuccess("Write", t.transactions.writeRow(t.ctx, tx, row))
}

// beginTx begins a transaction of the handler.
func (t *trial) beginTx() any {
	tx, err := t.transactions.beginTx(t.ctx)
	t.checkSuccess("Begin of a transaction", err)
	return tx
}

// checkTxFenced checks that CheckpointTx of an ended claim returns ErrClaimLost, and commits no row.
func (t *trial) checkTxFenced(own beginResult) {
	row := newRowName()
	_, err := t.runTxStep(t.ctx, own, t.newStoreStep("fenced", func(tx any) ([]byte, error) {
		return []byte("off"), t.transactions.writeRow(t.ctx, tx, row)
	}))
	t.checkError("CheckpointTx", err, idempotency.ErrClaimLost)
	t.checkRowCount(row, 0)
}

// listCheckpointNames returns the names of all checkpoints of the operation.
func (t *trial) listCheckpointNames(own beginResult) (names []string) {
	found, err := own.claim.(idempotency.Checkpointer).Checkpoints(t.ctx)
	t.checkSuccess("Checkpoints", err)
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// checkRowCount checks the number of committed rows with the given name.
func (t *trial) checkRowCount(name string, want int) {
	n, err := t.transactions.countRows(t.ctx, name)
	t.checkSuccess("Count", err)
	if n != want {
		t.failf("%d rows are committed, want %d", n, want)
	}
}
