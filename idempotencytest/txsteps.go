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

// Transactions tell [RunTxSteps] what a handler does with transactions of the type Tx, which is pgx.Tx or *sql.Tx, for example.
type Transactions[Tx any] struct {
	// Write writes a row with a name in a transaction. The name has 36 characters. There may be several rows of one name.
	Write func(ctx context.Context, tx Tx, name string) error

	// Count returns how many rows of a name are committed. It asks outside of any transaction, and does not wait for
	// transactions that are open.
	Count func(ctx context.Context, name string) (int, error)

	// Begin begins a transaction as a handler does before it calls DoInTx.
	Begin func(ctx context.Context) (Tx, error)

	// Commit and Rollback end a transaction. Some subtests call them with the transaction of a step, which only the store may end.
	Commit   func(ctx context.Context, tx Tx) error
	Rollback func(ctx context.Context, tx Tx) error
}

// RunTxSteps tests stores each of whose claims is an [idempotency.TxCheckpointer]. NewStore returns the stores. Each rule has a
// subtest, which has its own store, as in [Run]. The stores must pass Run and [RunSteps], too: RunTxSteps does not repeat their
// rules.
//
// The stores may share a database, which is also that of the rows. The database may let one transaction with rows wait for the end
// of another, as SQLite does.
func RunTxSteps[Tx any](t *testing.T, newStore func(*testing.T) idempotency.Store, of Transactions[Tx]) {
	_, claim, err := tryClaim(t.Context(), newStore(t))
	if err != nil {
		t.Fatal(err)
	}
	_, ok := claim.(idempotency.TxCheckpointer)
	release(t.Context(), claim)
	if !ok {
		t.Fatalf("the claim, a %T, is no idempotency.TxCheckpointer", claim)
	}
	runAll(t, "transactions", txStepCases, func(t *testing.T) subject { return of.subject(newStore(t)) })
}

func (of Transactions[Tx]) subject(store idempotency.Store) subject {
	return subject{store: store, txs: &anyTransactions{
		count:  of.Count,
		newVar: func() any { return new(Tx) },
		value:  func(v any) any { return *v.(*Tx) },
		write:  func(ctx context.Context, v any, name string) error { return of.Write(ctx, *v.(*Tx), name) },
		begin: func(ctx context.Context) (any, error) {
			tx, err := of.Begin(ctx)
			return &tx, err
		},
		commit:   func(ctx context.Context, v any) error { return of.Commit(ctx, *v.(*Tx)) },
		rollback: func(ctx context.Context, v any) error { return of.Rollback(ctx, *v.(*Tx)) },
	}}
}

// anyTransactions are [Transactions] whose transactions are behind pointers to variables of their type.
type anyTransactions struct {
	newVar           func() any
	value            func(v any) any
	write            func(ctx context.Context, v any, name string) error
	begin            func(ctx context.Context) (any, error)
	commit, rollback func(ctx context.Context, v any) error
	count            func(ctx context.Context, name string) (int, error)
}

var errOfRun = errors.New("the step has failed")

var txStepCases = []testCase{{
	name: "rows and result",
	rule: "Nobody sees the rows of a step before it ends. Then they are permanent, and so is the result.",
	check: func(t *trial) {
		own, row := t.claim(request), freshName()
		t.books(own, "book", "1", func(tx any) {
			t.writes(tx, row)
			t.writes(tx, row)
			t.counts(row, 0)
		})
		t.counts(row, 2)
		t.has(own, map[string]string{"book": "1"})
	},
}, {
	name: "next attempt",
	rule: "A later attempt has the result of a step, and adds its own.",
	check: func(t *trial) {
		own, row := t.claim(request), freshName()
		t.booksRow(own, "book", row)
		t.release(own)
		own = t.claim(request)
		t.has(own, map[string]string{"book": row})
		t.booksRow(own, "ship", freshName())
		t.release(own)
		t.release(t.claim(request))
		if n := len(t.checkpoints(t.claim(request))); n != 2 {
			t.failf("there are %d checkpoints, not 2", n)
		}
		t.counts(row, 1)
	},
}, {
	name: "first result",
	rule: "The first result of a name counts: the rows of a second one are rolled back, and it gets the first.",
	check: func(t *trial) {
		own, first, second := t.claim(request), freshName(), freshName()
		t.booksRow(own, "book", first)
		stored, err := t.runTx(t.ctx, own, t.step("book", func(tx any) ([]byte, error) {
			t.writes(tx, second)
			return []byte(second), nil
		}))
		t.succeeds("CheckpointTx", err)
		if string(stored) != first {
			t.failf("%.99q is stored, not %q", stored, first)
		}
		t.counts(first, 1)
		t.counts(second, 0)
	},
}, {
	name: "failed step",
	rule: "An error of Run comes back as it is. Rows and result are rolled back, and the step may run again.",
	check: func(t *trial) {
		own, row := t.claim(request), freshName()
		_, err := t.runTx(t.ctx, own, t.step("book", func(tx any) ([]byte, error) {
			t.writes(tx, row)
			return []byte("1"), errOfRun
		}))
		if err != errOfRun {
			t.failf("CheckpointTx returned %v, not the error of Run", err)
		}
		t.counts(row, 0)
		t.has(own, nil)
		t.booksRow(own, "book", row)
		t.counts(row, 1)
	},
}, {
	name: "interrupted step",
	rule: "A panic of Run, and its Goexit, rolls back and leaves nothing behind, however often.",
	check: func(t *trial) {
		own, row := t.claim(request), freshName()
		for i := range 24 { // more than there may be connections
			var ended sync.WaitGroup
			ended.Go(func() {
				defer func() { _ = recover() }()
				_, _ = t.runTx(t.ctx, own, t.step("book", func(tx any) ([]byte, error) {
					if t.txs.write(t.ctx, tx, row) == nil && i%2 == 0 {
						panic(errOfRun)
					}
					runtime.Goexit()
					return nil, nil
				}))
			})
			ended.Wait()
		}
		t.counts(row, 0)
		t.has(own, nil)
		t.booksRow(own, "book", row)
		t.counts(row, 1)
	},
}, {
	name: "any bytes",
	rule: "A result of any bytes comes back as it was stored, also none and 64 KiB.",
	check: func(t *trial) {
		every := make([]byte, 256)
		for i := range every {
			every[i] = byte(i)
		}
		own := t.claim(request)
		want := map[string]string{"none": "", "every": string(every), "large": strings.Repeat("x\x00", 32<<10)}
		for name, data := range want {
			t.books(own, name, data, func(any) {})
		}
		t.has(own, want)
	},
}, {
	name: "overtaken owner",
	rule: "Whose claim was taken over is told ErrClaimLost, and commits nothing.",
	check: func(t *trial) {
		old, successor := t.overtaken()
		t.isFencedTx(old)
		t.booksRow(successor, "book", freshName())
		t.isFencedTx(old)
		t.release(successor)
		t.isFencedTx(old)
		t.isFencedTx(successor)
	},
}, {
	name: "takeover of a step that runs",
	rule: "If another attempt takes over while a step runs, its rows are rolled back. If none can, they are committed.",
	check: func(t *trial) {
		old, row := t.lapsed(), freshName()
		var successor answer
		_, err := t.runTx(t.ctx, old, t.step("book", func(tx any) ([]byte, error) {
			t.writes(tx, row)
			// A store that locks the record, or has one writer at a time, lets others wait.
			ctx, cancel := context.WithTimeout(t.ctx, time.Second)
			defer cancel()
			successor, _ = t.ask(ctx, takingOver(request))
			t.keep(successor)
			return []byte("1"), nil
		}))
		if successor.claim == nil {
			t.succeeds("CheckpointTx", err)
			t.counts(row, 1)
			return
		}
		if err == nil {
			t.failf("CheckpointTx succeeded for an attempt that had lost its key")
		}
		t.counts(row, 0)
		t.has(successor, nil)
		t.booksRow(successor, "book", freshName())
	},
}, {
	name: "after the end",
	rule: "A claim that was settled commits nothing.",
	check: func(t *trial) {
		own := t.claim(request)
		t.complete(own, receipt("done"))
		t.isFencedTx(own)
		t.replays(own, receipt("done"))

		t = t.at(freshKey())
		own = t.claim(request)
		t.release(own)
		t.isFencedTx(own)
	},
}, {
	name: "forgotten record",
	rule: "A claim whose record the store has forgotten commits nothing, and does not make the record again.",
	check: func(t *trial) {
		t.isFencedTx(t.forgotten())
		t.claim(another)
	},
}, {
	name: "renewals",
	rule: "While a step runs, for longer than the lease, Extend succeeds. It does not make the transaction fail.",
	check: func(t *trial) {
		own, row := t.claim(lasting(request, short, long)), freshName()
		t.books(own, "book", "1", func(tx any) {
			t.writes(tx, row)
			for range 6 {
				time.Sleep(short / 2)
				t.succeeds("Extend", own.claim.Extend(t.ctx, long))
			}
			t.writes(tx, row)
		})
		t.counts(row, 2)
		t.extend(own, long)
		t.complete(own, receipt("done"))
		t.replays(own, receipt("done"))
	},
}, {
	name: "several steps",
	rule: "An operation has steps in transactions and others, one after the other.",
	check: func(t *trial) {
		own, first, second := t.claim(request), freshName(), freshName()
		t.stores(own, "charge", "1", "1")
		t.booksRow(own, "book", first)
		t.stores(own, "ship", "2", "2")
		t.booksRow(own, "close", second)
		t.has(own, map[string]string{"charge": "1", "book": first, "ship": "2", "close": second})
		t.counts(first, 1)
		t.counts(second, 1)
		t.complete(own, receipt("done"))
		t.replays(own, receipt("done"))
	},
}, {
	name: "ended context",
	rule: "A step does not begin when its context has ended. If the context ends later, the step is committed.",
	check: func(t *trial) {
		own, row := t.claim(request), freshName()
		ctx, cancel := context.WithCancel(t.ctx)
		stored, err := t.runTx(ctx, own, t.step("book", func(tx any) ([]byte, error) {
			t.writes(tx, row)
			cancel()
			return []byte("1"), nil
		}))
		t.succeeds("CheckpointTx", err)
		if string(stored) != "1" {
			t.failf("%.99q is stored", stored)
		}
		t.counts(row, 1)
		_, err = t.runTx(ctx, own, t.step("late", func(tx any) ([]byte, error) {
			return nil, t.txs.write(t.ctx, tx, row)
		}))
		if err == nil {
			t.failf("a step began although its context had ended")
		}
		t.counts(row, 1)
		t.has(own, map[string]string{"book": "1"})
	},
}, {
	name: "end by the step",
	rule: "If Run commits or rolls back, CheckpointTx returns an error, or that of Run. What is permanent nevertheless has Escaped.",
	check: func(t *trial) {
		for name, end := range map[string]func(context.Context, any) error{"Commit": t.txs.commit, "Rollback": t.txs.rollback} {
			for _, failure := range []error{nil, errOfRun} {
				t := t.at(freshKey())
				own, row := t.claim(request), freshName()
				step := t.step("book", func(tx any) ([]byte, error) {
					t.writes(tx, row)
					_ = end(t.ctx, tx)
					return []byte("1"), failure
				})
				_, err := t.runTx(t.ctx, own, step)
				if err == nil || failure != nil && err != failure && !step.Escaped {
					t.failf("%s by a step that returned %v: the error is %v", name, failure, err)
				}
				if !step.Escaped {
					t.counts(row, 0)
				}
				t.has(own, nil)
				t.booksRow(own, "other", freshName())
			}
		}
	},
}, {
	name: "left behind",
	rule: "The transaction cannot be used when its step has ended.",
	check: func(t *trial) {
		for _, failure := range []error{nil, errOfRun} {
			own, row := t.at(freshKey()).claim(request), freshName()
			var left any
			_, _ = t.runTx(t.ctx, own, t.step("book", func(tx any) ([]byte, error) {
				left = tx
				t.writes(tx, freshName())
				return []byte("1"), failure
			}))
			if t.txs.write(t.ctx, left, row) == nil {
				t.failf("a row was written after the end, behind an error %v", failure)
			}
			t.counts(row, 0)
		}
	},
}, {
	name: "other transactions",
	rule: "A transaction of a type that the store has not is an error that wraps errors.ErrUnsupported, and Run is not called.",
	check: func(t *trial) {
		own := t.claim(request)
		for _, step := range []*idempotency.TxStep{{Var: new(struct{})}, {Tx: struct{}{}}} {
			step.Name, step.Timeout = "book", patience
			step.Run = func() ([]byte, error) {
				t.failf("Run was called")
				return nil, nil
			}
			_, err := t.runTx(t.ctx, own, step)
			t.says("CheckpointTx", err, errors.ErrUnsupported)
		}
		t.has(own, nil)
	},
}, {
	name: "concurrent operations",
	rule: "Steps of several operations run at the same time, or one after the other. One that the database refuses may be repeated.",
	check: func(t *trial) {
		t.together(12, func(t *trial, _ int) {
			own, row := t.claim(request), freshName()
			t.until("the database accepts the step", func() bool {
				_, err := t.runTx(t.ctx, own, t.step("book", func(tx any) ([]byte, error) {
					return []byte(row), t.txs.write(t.ctx, tx, row)
				}))
				return err == nil
			})
			t.has(own, map[string]string{"book": row})
			t.complete(own, receipt("done"))
			t.replays(own, receipt("done"))
		})
	},
}, {
	name: "transaction of the handler",
	rule: "A result in a transaction of the handler becomes permanent when that is committed, with its rows.",
	check: func(t *trial) {
		own, before, row := t.claim(request), freshName(), freshName()
		tx := t.beginsTx()
		t.joins(own, tx, row)
		t.writes(tx, before)
		t.counts(row, 0)
		t.has(own, nil)
		t.succeeds("Commit", t.txs.commit(t.ctx, tx))
		t.counts(before, 1)
		t.counts(row, 1)
		t.has(own, map[string]string{"book": row})
	},
}, {
	name: "rollback by the handler",
	rule: "A result in a transaction that the handler rolls back is not stored. The handler may repeat the transaction.",
	check: func(t *trial) {
		own, undone, row := t.claim(request), freshName(), freshName()
		tx := t.beginsTx()
		t.joins(own, tx, undone)
		t.succeeds("Rollback", t.txs.rollback(t.ctx, tx))
		t.counts(undone, 0)
		t.has(own, nil)
		tx = t.beginsTx()
		t.joins(own, tx, row)
		t.succeeds("Commit", t.txs.commit(t.ctx, tx))
		t.counts(row, 1)
		t.has(own, map[string]string{"book": row})
	},
}, {
	name: "failed step of the handler",
	rule: "An error of Run in a transaction of the handler comes back as it is, and no result is stored.",
	check: func(t *trial) {
		own, tx := t.claim(request), t.beginsTx()
		step := t.joined("book", tx, func() ([]byte, error) { return []byte("1"), errOfRun })
		_, err := t.runTx(t.ctx, own, step)
		if err != errOfRun {
			t.failf("CheckpointTx returned %v, not the error of Run", err)
		}
		t.succeeds("Rollback", t.txs.rollback(t.ctx, tx))
		t.has(own, nil)
	},
}, {
	name: "overtaken handler",
	rule: "Whose claim was taken over gets ErrClaimLost in a transaction of its own, also if that happens while the step runs.",
	check: func(t *trial) {
		old, successor := t.overtaken()
		tx := t.beginsTx()
		_, err := t.runTx(t.ctx, old, t.joined("book", tx, func() ([]byte, error) { return []byte("1"), nil }))
		t.says("CheckpointTx", err, idempotency.ErrClaimLost)
		_ = t.txs.rollback(t.ctx, tx)
		t.has(successor, nil)

		t = t.at(freshKey())
		old, tx = t.lapsed(), t.beginsTx()
		_, err = t.runTx(t.ctx, old, t.joined("book", tx, func() ([]byte, error) {
			ctx, cancel := context.WithTimeout(t.ctx, time.Second)
			defer cancel()
			successor, _ = t.ask(ctx, takingOver(request))
			t.keep(successor)
			return []byte("1"), nil
		}))
		if successor.claim == nil {
			t.succeeds("CheckpointTx", err)
			t.succeeds("Commit", t.txs.commit(t.ctx, tx))
			return
		}
		if err == nil {
			t.failf("CheckpointTx succeeded for an attempt that had lost its key")
		}
		_ = t.txs.rollback(t.ctx, tx)
		t.has(successor, nil)
	},
}}

func freshName() string { return uuid.NewString() }

// step returns a step in a transaction of the store.
func (t *trial) step(name string, run func(tx any) ([]byte, error)) *idempotency.TxStep {
	variable := t.txs.newVar()
	return &idempotency.TxStep{
		Name: name, Var: variable, Timeout: patience, Run: func() ([]byte, error) { return run(variable) },
	}
}

// joined returns a step in a transaction of the handler.
func (t *trial) joined(name string, tx any, run func() ([]byte, error)) *idempotency.TxStep {
	return &idempotency.TxStep{Name: name, Tx: t.txs.value(tx), Timeout: patience, Run: run}
}

// runTx runs a step. Run is called once at most.
func (t *trial) runTx(ctx context.Context, own answer, step *idempotency.TxStep) ([]byte, error) {
	run, calls := step.Run, 0
	step.Run = func() ([]byte, error) {
		if calls++; calls > 1 {
			return nil, fmt.Errorf("Run was called %d times", calls)
		}
		return run()
	}
	return own.claim.(idempotency.TxCheckpointer).CheckpointTx(ctx, step)
}

// books runs a step in a transaction of the store. Its result is data.
func (t *trial) books(own answer, name, data string, run func(tx any)) {
	stored, err := t.runTx(t.ctx, own, t.step(name, func(tx any) ([]byte, error) {
		run(tx)
		return []byte(data), nil
	}))
	t.succeeds("CheckpointTx", err)
	if string(stored) != data {
		t.failf("of %q, %.99q is stored, not %.99q", name, stored, data)
	}
}

// booksRow runs a step that writes one row. Its result is the name of the row.
func (t *trial) booksRow(own answer, name, row string) {
	t.books(own, name, row, func(tx any) { t.writes(tx, row) })
	t.counts(row, 1)
}

// joins runs the step "book" in a transaction of the handler. It writes one row, and its result is the name of that.
func (t *trial) joins(own answer, tx any, row string) {
	stored, err := t.runTx(t.ctx, own, t.joined("book", tx, func() ([]byte, error) {
		t.writes(tx, row)
		return []byte(row), nil
	}))
	t.succeeds("CheckpointTx", err)
	if string(stored) != row {
		t.failf("%.99q is stored, not %.99q", stored, row)
	}
}

func (t *trial) writes(tx any, row string) { t.succeeds("Write", t.txs.write(t.ctx, tx, row)) }

func (t *trial) beginsTx() any {
	tx, err := t.txs.begin(t.ctx)
	t.succeeds("Begin of a transaction", err)
	return tx
}

// isFencedTx checks that a claim which has ended commits nothing.
func (t *trial) isFencedTx(own answer) {
	row := freshName()
	_, err := t.runTx(t.ctx, own, t.step("fenced", func(tx any) ([]byte, error) {
		return []byte("off"), t.txs.write(t.ctx, tx, row)
	}))
	t.says("CheckpointTx", err, idempotency.ErrClaimLost)
	t.counts(row, 0)
}

// checkpoints returns the names of the checkpoints of an operation.
func (t *trial) checkpoints(own answer) (names []string) {
	found, err := own.claim.(idempotency.Checkpointer).Checkpoints(t.ctx)
	t.succeeds("Checkpoints", err)
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// committed returns how many rows of a name are committed.
func (t *trial) committed(name string) int {
	n, err := t.txs.count(t.ctx, name)
	t.succeeds("count", err)
	return n
}

// counts checks how many rows of a name are committed.
func (t *trial) counts(name string, want int) {
	if n := t.committed(name); n != want {
		t.failf("%d rows are committed, not %d", n, want)
	}
}
