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

// booking is a harness whose steps write rows.
type booking struct {
	*harness
	rows  *testservice.Rows
	store *troubledStore
}

func newBooking(t *testing.T, edits ...func(*idempotency.RunnerOptions)) *booking {
	rows := testservice.NewRows()
	store := &troubledStore{Store: testservice.NewRowStore(rows, "")}
	return &booking{newHarness(t, store, edits...), rows, store}
}

// bookRow writes a row in a step of DoTx, and returns how often such a step has run.
func (b *booking) bookRow(ctx context.Context, name string) (int32, error) {
	return step.DoTx(ctx, name, func(tx *testservice.RowTx) (int32, error) { return b.effect.Add(1), tx.Write(ctx, name) })
}

// bookRowIn is bookRow in a transaction of the handler.
func (b *booking) bookRowIn(ctx context.Context, tx *testservice.RowTx, name string) (int32, error) {
	return step.DoInTx(ctx, tx, name, func() (int32, error) { return b.effect.Add(1), tx.Write(ctx, name) })
}

func (b *booking) countRows(name string) int {
	n, err := b.rows.Count(context.Background(), name)
	require.NoError(b, err)
	return n
}

// troubledStore is a store whose claims may fail, or be lost, at steps in transactions.
type troubledStore struct {
	idempotency.Store
	beforeStep   func(step *idempotency.TxStep) error
	escapesTx    bool // each step ends its transaction by itself
	errAfterStep error
}

func (s *troubledStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = troubledClaim{claim.(idempotency.TxCheckpointer), s}
	}
	return record, claim, err
}

type troubledClaim struct {
	idempotency.TxCheckpointer
	store *troubledStore
}

func (c troubledClaim) CheckpointTx(ctx context.Context, step *idempotency.TxStep) ([]byte, error) {
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
	b := newBooking(t)
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
	b := newBooking(t)
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
	b := newBooking(t)
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
	b := newBooking(t)
	b.runAttempt(func(ctx context.Context) {
		refused := func(when string) {
			for kind, run := range map[string]func(name string) error{
				"Do":         func(name string) error { _, err := step.Do(ctx, name, b.countCharge); return err },
				"AtMostOnce": func(name string) error { _, err := step.AtMostOnce(ctx, name, b.countCharge, nil); return err },
				"DoTx":       func(name string) error { _, err := b.bookRow(ctx, name); return err },
			} {
				if when != "Do" || kind == "DoTx" {
					err := run(uuid.NewString())
					assert.ErrorIs(b, err, step.ErrMisuse, "%s within %s", kind, when)
					assert.ErrorContains(b, err, "the only step that runs")
				}
			}
		}
		_, err := step.DoTx(ctx, "book", func(tx *testservice.RowTx) (int, error) {
			refused("DoTx")
			return 1, tx.Write(ctx, "book")
		})
		assert.NoError(b, err)
		_, err = step.Do(ctx, "charge", func(context.Context) (int, error) {
			refused("Do")
			return 1, nil
		})
		assert.NoError(b, err)
		_, err = b.bookRow(ctx, "ship")
		assert.NoError(b, err, "one after the other")
	})
	require.EqualValues(t, 1, b.effect.Load())
}

// Without a claim, a step in a transaction does not run and returns ErrNoClaim, so that the handler can use a transaction
// of its own.
func TestTxStepWithoutAClaim(t *testing.T) {
	t.Parallel()
	b := newBooking(t)
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
	require.Zero(t, b.effect.Load())
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
				_, err := step.DoTx(ctx, "book", func(struct{}) (int32, error) { return h.effect.Add(1), nil })
				assert.ErrorIs(h, err, errors.ErrUnsupported)
				assert.NotErrorIs(h, err, step.ErrNoClaim)
			})
			require.Zero(t, h.effect.Load())
		})
	}
}

// If a step has committed its transaction by itself, the step does not run again, even if it failed or panicked afterwards.
func TestTxStepThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	for name, ending := range map[string]func() (int, error){
		"succeeds": func() (int, error) { return 1, nil },
		"fails":    func() (int, error) { return 0, errDown },
		"panics":   func() (int, error) { panic("boom") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBooking(t)
			b.store.escapesTx = true
			run := func(ctx context.Context) (err error) {
				defer func() { _ = recover() }()
				_, err = step.DoTx(ctx, "book", func(*testservice.RowTx) (int, error) {
					b.effect.Add(1)
					return ending()
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
			require.EqualValues(t, 1, b.effect.Load())
		})
	}
}

// If the outcome of a commit is unknown, the next step of the same name asks the store for the result first.
func TestTxStepInDoubt(t *testing.T) {
	t.Parallel()
	b := newBooking(t)
	b.runAttempt(func(ctx context.Context) {
		b.store.errAfterStep = errDown // behind a commit that has taken effect
		_, err := b.bookRow(ctx, "book")
		assert.ErrorIs(b, err, errDown)
		b.store.errAfterStep = nil
		n, err := b.bookRow(ctx, "book")
		assert.NoError(b, err)
		assert.EqualValues(b, 1, n)
	})
	require.EqualValues(t, 1, b.effect.Load())
	require.Equal(t, 1, b.countRows("book"))
}

// An attempt that loses its claim while the store begins the transaction does not run the step.
func TestTxStepOfALostClaim(t *testing.T) {
	t.Parallel()
	b := newBooking(t)
	b.runAttempt(func(ctx context.Context) {
		lost, lose := context.WithCancelCause(ctx)
		b.store.beforeStep = func(*idempotency.TxStep) error {
			lose(idempotency.ErrClaimLost)
			return nil
		}
		_, err := b.bookRow(lost, "book")
		assert.ErrorIs(b, err, idempotency.ErrClaimLost)
		assert.Zero(b, b.effect.Load())

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
	for name, commits := range map[string]bool{"committed": true, "rolled back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBooking(t)
			for attempt := range 2 {
				b.runAttempt(func(ctx context.Context) {
					for i := range 3 {
						tx, err := b.rows.Begin(ctx)
						assert.NoError(b, err)
						_, err = b.bookRowIn(ctx, tx, "book")
						assert.NoError(b, err)
						if i == 0 && !commits && attempt == 0 {
							assert.NoError(b, tx.Rollback(ctx))
							continue
						}
						assert.NoError(b, tx.Commit(ctx))
					}
				})
			}
			require.Equal(t, 1, b.countRows("book"))
			require.EqualValues(t, map[bool]int{true: 1, false: 2}[commits], b.effect.Load())
		})
	}
}

// The tracer gets steps in transactions as well.
func TestTracerOfTxSteps(t *testing.T) {
	t.Parallel()
	b := newBooking(t)
	var tracked sync.Map
	tracer := func(ctx context.Context, name string) (context.Context, func(bool, error)) {
		return ctx, func(found bool, err error) { tracked.Store(name, fmt.Sprint(found, err)) }
	}
	for range 2 {
		b.runAttempt(func(ctx context.Context) {
			_, err := b.bookRow(step.WithTracer(ctx, tracer), "book")
			assert.NoError(b, err)
		})
	}
	seen, _ := tracked.Load("book")
	require.Equal(t, "true <nil>", seen, "the trace says that the result was found")
}
