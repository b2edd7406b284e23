package step_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
)

// txHarness is a harness whose steps write rows in transactions.
type txHarness struct {
	*harness
	rows  *testservice.Rows
	store *faultyTxStore
}

// newTxHarness returns a harness whose runner uses a new row store and the edited options.
func newTxHarness(t *testing.T, edits ...func(*idempotency.RunnerOptions)) *txHarness {
	rows := testservice.NewRows()
	store := &faultyTxStore{Store: testservice.NewRowStore(rows, "")}
	return &txHarness{newHarness(t, store, edits...), rows, store}
}

// bookRow writes a row in a step of DoTx. The result is the new count of effects.
func (b *txHarness) bookRow(ctx context.Context, name string) (int32, error) {
	return step.DoTx(ctx, name, func(tx *testservice.RowTx) (int32, error) { return b.effectCount.Add(1), tx.Write(ctx, name) })
}

// bookRowIn writes a row in a step of DoInTx, in the transaction tx of the handler.
func (b *txHarness) bookRowIn(ctx context.Context, tx *testservice.RowTx, name string) (int32, error) {
	return step.DoInTx(ctx, tx, name, func() (int32, error) { return b.effectCount.Add(1), tx.Write(ctx, name) })
}

// countRows returns the number of committed rows with the given name.
func (b *txHarness) countRows(name string) int {
	n, err := b.rows.Count(context.Background(), name)
	require.NoError(b, err)
	return n
}

// faultyTxStore is a store whose claims may fail, or be lost, at steps in transactions.
type faultyTxStore struct {
	idempotency.Store
	beforeStep   func(step *idempotency.TxStep) error
	escapesTx    bool  // each step ends its transaction itself
	errAfterStep error // returned after each step, even after a commit that has taken effect
}

func (s *faultyTxStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = faultyTxClaim{claim.(idempotency.TxCheckpointer), s}
	}
	return record, claim, err
}

type faultyTxClaim struct {
	idempotency.TxCheckpointer
	store *faultyTxStore
}

func (c faultyTxClaim) CheckpointTx(ctx context.Context, step *idempotency.TxStep) ([]byte, error) {
	if c.store.beforeStep != nil {
		if err := c.store.beforeStep(step); err != nil {
			return nil, err
		}
	}
	if c.store.escapesTx {
		defer func() { step.Escaped = true }()
		if _, err := step.Run(); err != nil {
			return nil, err
		}
		return nil, errors.New("the step has ended its transaction")
	}
	stored, err := c.TxCheckpointer.CheckpointTx(ctx, step)
	return stored, errors.Join(err, c.store.errAfterStep)
}

// A step in a transaction writes its rows and its result once, over all attempts.
func TestTxStepRunsOnce(t *testing.T) {
	t.Parallel()
	b := newTxHarness(t)
	for range 3 {
		b.runAttempt(func(ctx context.Context) {
			n, err := b.bookRow(ctx, "book")
			assert.NoError(b, err)
			assert.EqualValues(b, 1, n)
			_, err = b.bookRow(ctx, "book")
			assert.ErrorIs(b, err, step.ErrMisuse, "once in an attempt")
		})
	}
	require.Equal(t, 1, b.countRows("book"))
}

// If fn fails, its rows are rolled back, and its error is returned unchanged. The step may run again in the same attempt.
func TestFailedTxStep(t *testing.T) {
	t.Parallel()
	b := newTxHarness(t)
	b.runAttempt(func(ctx context.Context) {
		_, err := step.DoTx(ctx, "book", func(tx *testservice.RowTx) (int, error) {
			return 1, errors.Join(tx.Write(ctx, "book"), errDown)
		})
		assert.Equal(b, errors.Join(errDown), err)
		assert.PanicsWithValue(b, "boom", func() {
			_, _ = step.DoTx(ctx, "book", func(tx *testservice.RowTx) (int, error) { panic("boom") })
		})
		assert.Zero(b, b.countRows("book"))
		_, err = b.bookRow(ctx, "book")
		assert.NoError(b, err)
	})
	require.Equal(t, 1, b.countRows("book"))
}

// If the result cannot be stored, the rows of the step are rolled back.
func TestResultOfTxStepThatCannotBeStored(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", step.MaxResult-2)
	b := newTxHarness(t)
	b.runAttempt(func(ctx context.Context) {
		for _, value := range []any{math.NaN(), big + "x"} {
			_, err := step.DoTx(ctx, "book", func(tx *testservice.RowTx) (any, error) { return value, tx.Write(ctx, "book") })
			assert.ErrorIs(b, err, step.ErrMisuse)
		}
		for i := range step.MaxTotal/step.MaxResult - 1 {
			_, err := step.Do(ctx, fmt.Sprint(i), func(context.Context) (string, error) { return big, nil })
			assert.NoError(b, err)
		}
		_, err := step.DoTx(ctx, "book", func(tx *testservice.RowTx) (string, error) { return big, tx.Write(ctx, "book") })
		assert.ErrorIs(b, err, step.ErrMisuse)
		assert.ErrorContains(b, err, "all results together")
		assert.Zero(b, b.countRows("book"))
		_, err = b.bookRow(ctx, "book")
		assert.NoError(b, err, "a smaller result has room")
	})
}

// While a step runs in a transaction, no other step begins, neither within it nor beside it. A step in a transaction does
// not begin while another step runs.
func TestTxStepRunsAlone(t *testing.T) {
	t.Parallel()
	b := newTxHarness(t)
	b.runAttempt(func(ctx context.Context) {
		requireRefusal := func(outer string) {
			for kind, run := range map[string]func(name string) error{
				"Do":         func(name string) error { _, err := step.Do(ctx, name, b.countCharge); return err },
				"AtMostOnce": func(name string) error { _, err := step.AtMostOnce(ctx, name, b.countCharge, nil); return err },
				"DoTx":       func(name string) error { _, err := b.bookRow(ctx, name); return err },
			} {
				if outer != "Do" || kind == "DoTx" {
					err := run(uuid.NewString())
					assert.ErrorIs(b, err, step.ErrMisuse, "%s within %s", kind, outer)
					assert.ErrorContains(b, err, "the only step that runs")
				}
			}
		}
		_, err := step.DoTx(ctx, "book", func(tx *testservice.RowTx) (int, error) {
			requireRefusal("DoTx")
			return 1, tx.Write(ctx, "book")
		})
		assert.NoError(b, err)
		_, err = step.Do(ctx, "charge", func(context.Context) (int, error) {
			requireRefusal("Do")
			return 1, nil
		})
		assert.NoError(b, err)
		_, err = b.bookRow(ctx, "ship")
		assert.NoError(b, err, "one after the other")
	})
	require.EqualValues(t, 1, b.effectCount.Load())
}

// Without a claim, a step in a transaction does not run and returns ErrNoClaim, so that the handler can use a transaction
// of its own.
func TestTxStepWithoutAClaim(t *testing.T) {
	t.Parallel()
	b := newTxHarness(t)
	tx, err := b.rows.Begin(t.Context())
	require.NoError(t, err)
	_, err = b.bookRow(t.Context(), "book")
	require.ErrorIs(t, err, step.ErrNoClaim, "the request has no key")
	_, err = b.bookRowIn(t.Context(), tx, "book")
	require.ErrorIs(t, err, step.ErrNoClaim)

	failOpen := func(o *idempotency.RunnerOptions) { o.FailOpen = true }
	h := newHarness(t, &stepStore{Store: newMemoryStore(), grantsNoClaims: true}, failOpen)
	h.runAttempt(func(ctx context.Context) {
		_, err := b.bookRow(ctx, "book")
		assert.ErrorIs(h, err, step.ErrNoClaim, "FailOpen")
		_, err = step.AtMostOnce(ctx, "charge", h.countCharge, nil)
		assert.ErrorIs(h, err, step.ErrNoClaim)
		assert.ErrorIs(h, err, errors.ErrUnsupported)
	})
	require.Zero(t, b.effectCount.Load())
}

// A store without transactions does not return ErrNoClaim, because a handler must not write its rows elsewhere in that
// case.
func TestTxStepOfAStoreWithoutTransactions(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]idempotency.Store{
		"no transactions": newMemoryStore(),
		"no steps":        &stepStore{Store: newMemoryStore(), keepsNoSteps: true},
		"another type":    testservice.NewRowStore(nil, ""),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, store)
			h.runAttempt(func(ctx context.Context) {
				_, err := step.DoTx(ctx, "book", func(struct{}) (int32, error) { return h.effectCount.Add(1), nil })
				assert.ErrorIs(h, err, errors.ErrUnsupported)
				assert.NotErrorIs(h, err, step.ErrNoClaim)
			})
			require.Zero(t, h.effectCount.Load())
		})
	}
}

// A step that has committed its transaction itself does not run again, even if the step failed or panicked afterwards.
func TestTxStepThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	for name, endStep := range map[string]func() (int, error){
		"succeeds": func() (int, error) { return 1, nil },
		"fails":    func() (int, error) { return 0, errDown },
		"panics":   func() (int, error) { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTxHarness(t)
			b.store.escapesTx = true
			run := func(ctx context.Context) (err error) {
				defer func() { _ = recover() }()
				_, err = step.DoTx(ctx, "book", func(*testservice.RowTx) (int, error) {
					b.effectCount.Add(1)
					return endStep()
				})
				return err
			}
			b.runAttempt(func(ctx context.Context) {
				err := run(ctx)
				if name != "panics" {
					assert.ErrorIs(b, err, step.ErrResult)
					assert.ErrorContains(b, err, "may be permanent")
				}
				if name == "fails" {
					assert.ErrorIs(b, err, errDown)
				}
				assert.ErrorIs(b, run(ctx), step.ErrMisuse, "a second time in the attempt")
			})
			b.runAttempt(func(ctx context.Context) { assert.ErrorIs(b, run(ctx), step.ErrResult) })
			require.EqualValues(t, 1, b.effectCount.Load())
		})
	}
}

// If the outcome of a commit is unknown, the next step of the same name asks the store for the result first.
func TestTxStepInDoubt(t *testing.T) {
	t.Parallel()
	b := newTxHarness(t)
	b.runAttempt(func(ctx context.Context) {
		b.store.errAfterStep = errDown // after a commit that has taken effect
		_, err := b.bookRow(ctx, "book")
		assert.ErrorIs(b, err, errDown)
		b.store.errAfterStep = nil
		n, err := b.bookRow(ctx, "book")
		assert.NoError(b, err)
		assert.EqualValues(b, 1, n)
	})
	require.EqualValues(t, 1, b.effectCount.Load())
	require.Equal(t, 1, b.countRows("book"))
}

// An attempt that loses its claim while the store begins the transaction does not run the step.
func TestTxStepOfALostClaim(t *testing.T) {
	t.Parallel()
	b := newTxHarness(t)
	b.runAttempt(func(ctx context.Context) {
		lost, lose := context.WithCancelCause(ctx)
		b.store.beforeStep = func(*idempotency.TxStep) error {
			lose(idempotency.ErrClaimLost)
			return nil
		}
		_, err := b.bookRow(lost, "book")
		assert.ErrorIs(b, err, idempotency.ErrClaimLost)
		assert.Zero(b, b.effectCount.Load())

		b.store.beforeStep = nil
		lost, lose = context.WithCancelCause(ctx)
		_, err = step.DoTx(lost, "book", func(tx *testservice.RowTx) (int, error) {
			defer lose(idempotency.ErrClaimLost)
			return 1, tx.Write(ctx, "book")
		})
		assert.ErrorIs(b, err, idempotency.ErrClaimLost)
	})
	require.Zero(t, b.countRows("book"), "what it has written is rolled back")
}

// A handler may repeat its transaction in the same attempt. If the first transaction was committed after all, DoInTx
// finds the result.
func TestRepeatedTransactionOfTheHandler(t *testing.T) {
	t.Parallel()
	for name, isCommitted := range map[string]bool{"committed": true, "rolled back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newTxHarness(t)
			for attempt := range 2 {
				b.runAttempt(func(ctx context.Context) {
					for i := range 3 {
						tx, err := b.rows.Begin(ctx)
						assert.NoError(b, err)
						_, err = b.bookRowIn(ctx, tx, "book")
						assert.NoError(b, err)
						if i == 0 && !isCommitted && attempt == 0 {
							assert.NoError(b, tx.Rollback(ctx))
							continue
						}
						assert.NoError(b, tx.Commit(ctx))
					}
				})
			}
			require.Equal(t, 1, b.countRows("book"))
			require.EqualValues(t, map[bool]int{true: 1, false: 2}[isCommitted], b.effectCount.Load())
		})
	}
}

// The tracer gets steps in transactions as well.
func TestTracerOfTxSteps(t *testing.T) {
	t.Parallel()
	b := newTxHarness(t)
	var traced sync.Map
	tracer := func(ctx context.Context, name string) (context.Context, func(bool, error)) {
		return ctx, func(found bool, err error) { traced.Store(name, fmt.Sprint(found, err)) }
	}
	for range 2 {
		b.runAttempt(func(ctx context.Context) {
			_, err := b.bookRow(step.WithTracer(ctx, tracer), "book")
			assert.NoError(b, err)
		})
	}
	seen, _ := traced.Load("book")
	require.Equal(t, "true <nil>", seen, "the trace says that the result was found")
}
