package step_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/checkpoint"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
)

var (
	errDown  = errors.New("provider is down")
	errLater = errors.New("a later step has failed")
)

// harness runs attempts at an operation.
type harness struct {
	*testing.T
	runner *idempotency.Runner
	effect atomic.Int32 // how often a step has had its effect
}

func newHarness(t *testing.T, store idempotency.Store, edits ...func(*idempotency.RunnerOptions)) *harness {
	opts := idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler), StoreTimeout: 2 * time.Second}
	for _, edit := range edits {
		edit(&opts)
	}
	runner, err := idempotency.NewRunner(store, opts)
	require.NoError(t, err)
	testservice.ShutdownAtEnd(t, runner)
	return &harness{T: t, runner: runner}
}

func newMemoryStore() *idempotency.MemoryStore {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

// runAttempt runs handler in an attempt that fails after the handler, so that a later attempt can follow.
func (h *harness) runAttempt(handler func(ctx context.Context)) {
	h.Helper()
	ran := false
	_, _, err := h.runner.Do(context.Background(), testservice.NumberedKey(1), nil,
		func(ctx context.Context) (idempotency.Response, error) {
			handler(ctx)
			ran = true
			return idempotency.Response{}, errLater
		})
	require.True(h, ran, "no attempt: %v", err)
}

// countCharge is the work of a step. It returns how often it has run.
func (h *harness) countCharge(context.Context) (int32, error) { return h.effect.Add(1), nil }

// failCharge is countCharge with the error errDown.
func (h *harness) failCharge(context.Context) (int32, error) {
	h.effect.Add(1)
	return 0, errDown
}

// A step with a stored result does not run in a later attempt.
func TestStepRunsOnce(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(ctx context.Context, h *harness) (int32, error){
		"Do": func(ctx context.Context, h *harness) (int32, error) { return step.Do(ctx, "charge", h.countCharge) },
		"AtMostOnce": func(ctx context.Context, h *harness) (int32, error) {
			return step.AtMostOnce(ctx, "charge", h.countCharge, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newMemoryStore())
			for range 3 {
				h.runAttempt(func(ctx context.Context) {
					n, err := run(ctx, h)
					assert.NoError(h, err)
					assert.EqualValues(h, 1, n)
				})
			}
			require.EqualValues(t, 1, h.effect.Load())
		})
	}
}

// A handler behind a real server continues where the attempt before has stopped, even after a panic.
func TestStepsOfAHandler(t *testing.T) {
	t.Parallel()
	var reserved, charged, failed atomic.Int32
	service := testservice.Setup{Store: newMemoryStore()}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		id, err := step.Do(r.Context(), "reserve", func(context.Context) (string, error) {
			return fmt.Sprint("r", reserved.Add(1)), nil
		})
		assert.NoError(t, err)
		if failed.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		receipt, err := step.Do(r.Context(), "charge", func(context.Context) (map[string]string, error) {
			return map[string]string{"of": id, "n": fmt.Sprint(charged.Add(1))}, nil
		})
		assert.NoError(t, err)
		if failed.Load() == 2 {
			http.Error(w, "later", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, receipt["of"], receipt["n"])
	})
	require.Error(t, service.Send("/payments", "k", "body").Err, "the handler has panicked")
	require.Equal(t, http.StatusServiceUnavailable, service.Post("k", "body").Status)
	require.Equal(t, "r11", service.Post("k", "body").Body)
	require.EqualValues(t, 1, reserved.Load())
	require.EqualValues(t, 1, charged.Load())
}

// If fn returns an error, panics or exits, Do stores no result. The error of fn is returned unchanged.
func TestFailedStepStoresNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	h.runAttempt(func(ctx context.Context) {
		_, err := step.Do(ctx, "charge", h.failCharge)
		assert.Equal(h, errDown, err)
		assert.PanicsWithValue(h, "boom", func() {
			_, _ = step.Do(ctx, "charge", func(context.Context) (int32, error) { panic("boom") })
		})
		exited := make(chan struct{})
		go func() {
			defer close(exited)
			_, _ = step.Do(ctx, "charge", func(context.Context) (int32, error) {
				runtime.Goexit()
				return 0, nil
			})
		}()
		<-exited
		n, err := step.Do(ctx, "charge", h.countCharge)
		assert.NoError(h, err)
		assert.EqualValues(h, 2, n, "it may run again in the same attempt")
	})
}

// If a step of AtMostOnce has begun without a result, fn does not run again. The function ask provides the result.
func TestAtMostOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	h.runAttempt(func(ctx context.Context) {
		_, err := step.AtMostOnce(ctx, "charge", h.failCharge, nil)
		assert.Equal(h, errDown, err)
		_, err = step.AtMostOnce(ctx, "charge", h.countCharge, nil)
		assert.ErrorIs(h, err, step.ErrUnknown)
	})
	h.runAttempt(func(ctx context.Context) {
		_, err := step.AtMostOnce(ctx, "charge", h.countCharge, nil)
		assert.ErrorIs(h, err, step.ErrUnknown)
		_, err = step.AtMostOnce(ctx, "charge", h.countCharge, func(context.Context) (int32, error) { return 0, errDown })
		assert.Equal(h, errDown, err, "who is asked does not know")
		n, err := step.AtMostOnce(ctx, "charge", h.countCharge, func(context.Context) (int32, error) { return 42, nil })
		assert.NoError(h, err)
		assert.EqualValues(h, 42, n)
	})
	h.runAttempt(func(ctx context.Context) {
		n, err := step.AtMostOnce(ctx, "charge", h.countCharge, nil)
		assert.NoError(h, err)
		assert.EqualValues(h, 42, n, "what was found out is the result")
	})
	require.EqualValues(t, 1, h.effect.Load())
}

// Errors of the program are reported as ErrMisuse, and the step does not run.
func TestMisuse(t *testing.T) {
	t.Parallel()
	misused := func(h *harness, ctx context.Context, name, why string) {
		h.Helper()
		_, err := step.Do(ctx, name, h.countCharge)
		assert.ErrorIs(h, err, step.ErrMisuse)
		assert.ErrorContains(h, err, why)
	}
	h := newHarness(t, newMemoryStore())
	misused(h, context.Background(), "charge", "belongs to no operation")

	var left context.Context
	h.runAttempt(func(ctx context.Context) {
		left = context.WithoutCancel(ctx)
		for _, name := range []string{"", "two words", "mark?", "ä", "\n", strings.Repeat("n", step.MaxName+1)} {
			misused(h, ctx, name, "name is invalid")
		}
		_, err := step.Do(ctx, "outer", func(ctx context.Context) (int, error) {
			misused(h, ctx, "inner", "within another step")
			misused(h, ctx, "outer", "within another step")
			return 1, nil
		})
		assert.NoError(h, err)
		misused(h, ctx, "outer", "begun a step of this name before")
		for i := 1; i < step.MaxSteps; i++ {
			_, err := step.Do(ctx, fmt.Sprint("n", i), func(context.Context) (int, error) { return i, nil })
			assert.NoError(h, err)
		}
		misused(h, ctx, "one-more", "too many steps")
	})
	misused(h, left, "charge", "attempt has ended")
	h.runAttempt(func(ctx context.Context) {
		misused(h, ctx, "one-more", "too many steps")
		n, err := step.Do(ctx, "n7", func(context.Context) (int, error) { return 0, errDown })
		assert.NoError(h, err)
		assert.Equal(h, 7, n)
	})
	h.runAttempt(func(ctx context.Context) { left = context.WithoutCancel(ctx) }) // without a step
	misused(h, left, "charge", "attempt has ended")
	require.Zero(t, h.effect.Load())
}

// Two steps of the same name do not run at the same time. Steps of different names do.
func TestConcurrentSteps(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	for attempt := range 2 {
		h.runAttempt(func(ctx context.Context) {
			var running, ready sync.WaitGroup
			const steps = 8
			if attempt == 0 {
				ready.Add(steps)
			}
			var refused atomic.Int32
			for i := range steps {
				for range 2 {
					running.Go(func() {
						n, err := step.Do(ctx, fmt.Sprint("step-", i), func(context.Context) (int, error) {
							ready.Done()
							ready.Wait() // all of them run
							return i, nil
						})
						if errors.Is(err, step.ErrMisuse) {
							refused.Add(1)
							return
						}
						assert.NoError(h, err)
						assert.Equal(h, i, n)
					})
				}
			}
			running.Wait()
			assert.EqualValues(h, steps, refused.Load())
		})
	}
}

// If the result of a step cannot be stored or decoded, the step does not run again.
func TestResultThatCannotBeHad(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", step.MaxResult-2) // with its quotes, as much as there may be
	for name, c := range map[string]struct {
		value any
		why   string
	}{
		"no JSON":   {math.NaN(), "unsupported value"},
		"too large": {big + "x", "the result has 65537 bytes, and may have 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newMemoryStore())
			run := func(why string) func(ctx context.Context) {
				return func(ctx context.Context) {
					_, err := step.Do(ctx, "charge", func(context.Context) (any, error) {
						h.effect.Add(1)
						return c.value, nil
					})
					assert.ErrorIs(h, err, step.ErrResult)
					assert.ErrorContains(h, err, why)
				}
			}
			h.runAttempt(run(c.why))
			h.runAttempt(run("could not be kept"))
			require.EqualValues(t, 1, h.effect.Load())
		})
	}
	t.Run("too large together", func(t *testing.T) {
		h := newHarness(t, newMemoryStore())
		h.runAttempt(func(ctx context.Context) {
			for i := range step.MaxTotal/step.MaxResult - 1 {
				_, err := step.Do(ctx, fmt.Sprint(i), func(context.Context) (string, error) { return big, nil })
				assert.NoError(h, err)
			}
			_, err := step.Do(ctx, "last", func(context.Context) (string, error) { return big, nil })
			assert.ErrorIs(h, err, step.ErrResult)
			assert.ErrorContains(h, err, "all results together")
			_, err = step.Do(ctx, "small", h.countCharge)
			assert.NoError(h, err)
		})
		h.runAttempt(func(ctx context.Context) {
			_, err := step.Do(ctx, "last", func(context.Context) (string, error) { return "again", nil })
			assert.ErrorIs(h, err, step.ErrResult)
		})
	})
	t.Run("of another type", func(t *testing.T) {
		h := newHarness(t, newMemoryStore())
		h.runAttempt(func(ctx context.Context) {
			_, err := step.Do(ctx, "charge", func(context.Context) (string, error) { return "ch_1", nil })
			assert.NoError(h, err)
		})
		h.runAttempt(func(ctx context.Context) { // of the next version of the service
			_, err := step.Do(ctx, "charge", h.countCharge)
			assert.ErrorIs(h, err, step.ErrResult)
			assert.ErrorContains(h, err, "cannot unmarshal string")
		})
		require.Zero(t, h.effect.Load())
	})
}

// An attempt that has lost its claim runs no step. If the claim is lost during a step, the result of the step does not
// count.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	store := &stepStore{Store: newMemoryStore()}
	h := newHarness(t, store)
	h.runAttempt(func(ctx context.Context) {
		store.permanentError.Store(&idempotency.ErrClaimLost)
		_, err := step.Do(ctx, "charge", h.countCharge)
		assert.ErrorIs(h, err, idempotency.ErrClaimLost)
		store.permanentError.Store(nil)

		lost, lose := context.WithCancelCause(ctx)
		_, err = step.Do(lost, "ship", func(context.Context) (int, error) {
			lose(idempotency.ErrClaimLost)
			return 1, nil
		})
		assert.ErrorIs(h, err, idempotency.ErrClaimLost)
		_, err = step.Do(lost, "mail", h.countCharge)
		assert.Equal(h, idempotency.ErrClaimLost, err)
	})
	require.EqualValues(t, 1, h.effect.Load())
}

// An attempt that loses its claim during a call of the store does not run the step. Otherwise the next attempt may find
// the mark, hear from ask that nothing has happened, and have the effect a second time.
func TestClaimLostBeforeTheEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		run  func(ctx context.Context, send, ask func(context.Context) (int32, error)) (int32, error)
		slow func(*stepStore) *atomic.Int64
	}{
		"AtMostOnce, while the mark is stored": {
			func(ctx context.Context, send, ask func(context.Context) (int32, error)) (int32, error) {
				return step.AtMostOnce(ctx, "mail", send, ask)
			},
			func(s *stepStore) *atomic.Int64 { return &s.writeTakes },
		},
		"Do, while the results are read": {
			func(ctx context.Context, send, _ func(context.Context) (int32, error)) (int32, error) {
				return step.Do(ctx, "mail", send)
			},
			func(s *stepStore) *atomic.Int64 { return &s.readTakes },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &stepStore{Store: newMemoryStore()}
				h := newHarness(t, store, func(o *idempotency.RunnerOptions) { o.StoreTimeout = 20 * time.Second })
				h.runAttempt(func(context.Context) {}) // so that the next one reads
				c.slow(store).Store(int64(15 * time.Second))
				store.extendInstead.Store(new(func() error { return errDown }))
				send := func(ctx context.Context) (int32, error) {
					op, _ := idempotency.FromContext(ctx)
					assert.Equal(h, 3, op.Attempt, "this attempt may send")
					return h.effect.Add(1), nil
				}
				ask := func(ctx context.Context) (int32, error) { return send(ctx) } // nothing was sent
				var both sync.WaitGroup
				both.Go(func() {
					h.runAttempt(func(ctx context.Context) {
						time.Sleep(25 * time.Second) // its lease is renewed no more
						_, err := c.run(ctx, send, ask)
						assert.ErrorIs(h, err, idempotency.ErrClaimLost)
					})
				})
				time.Sleep(31 * time.Second)
				c.slow(store).Store(0)
				h.runAttempt(func(ctx context.Context) {
					_, err := c.run(ctx, send, ask)
					assert.NoError(h, err)
				})
				both.Wait()
				require.EqualValues(t, 1, h.effect.Load())
			})
		})
	}
}

// If the store has lost the record with the marks of earlier attempts, a step of AtMostOnce may have begun, and its
// result is unknown. An attempt that has read the marks before the loss still knows them.
func TestLostRecordIsUnknown(t *testing.T) {
	t.Parallel()
	const renewed = 30 * time.Second // the lease is renewed in this time
	const lost = 2 * time.Minute     // the record, if nothing renews it in this time
	for name, c := range map[string]struct {
		first, second func(h *lossyHarness, ctx context.Context)
		unknown       bool
	}{
		"lost by the second attempt, and seen by the step": {
			first:   func(h *lossyHarness, ctx context.Context) { h.sendMail(ctx) },
			second:  func(h *lossyHarness, _ context.Context) { h.loseRecord(lost) },
			unknown: true,
		},
		"lost by the second attempt, and seen by a renewal": {
			first:   func(h *lossyHarness, ctx context.Context) { h.sendMail(ctx) },
			second:  func(h *lossyHarness, _ context.Context) { h.loseRecord(lost); time.Sleep(renewed) },
			unknown: true,
		},
		"lost by the first attempt": {
			first:   func(h *lossyHarness, ctx context.Context) { h.sendMail(ctx); h.loseRecord(lost); time.Sleep(renewed) },
			second:  func(*lossyHarness, context.Context) {},
			unknown: true,
		},
		"lost when the second attempt had read its steps": {
			first: func(*lossyHarness, context.Context) {},
			second: func(h *lossyHarness, ctx context.Context) {
				_, err := step.Do(ctx, "reserve", h.countCharge)
				assert.NoError(h, err)
				h.loseRecord(lost)
				time.Sleep(renewed)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &stepStore{Store: newMemoryStore()}
				h := &lossyHarness{harness: newHarness(t, store, func(o *idempotency.RunnerOptions) {
					o.Lease, o.TTL = time.Minute, time.Minute
				}), store: store}
				h.runAttempt(func(ctx context.Context) { c.first(h, ctx) })
				if !c.unknown {
					h.runAttempt(func(ctx context.Context) {
						c.second(h, ctx)
						assert.NoError(h, h.sendMail(ctx))
						_, err := step.Do(ctx, "charge", h.countCharge)
						assert.NoError(h, err)
					})
					return
				}
				before := h.sentMails
				h.runAttempt(func(ctx context.Context) {
					c.second(h, ctx)
					assert.ErrorIs(h, h.sendMail(ctx), step.ErrUnknown)
					n, err := step.Do(ctx, "charge", h.countCharge)
					assert.NoError(h, err)
					assert.EqualValues(h, 1, n, "a step that may run again does")
				})
				h.runAttempt(func(ctx context.Context) {
					assert.ErrorIs(h, h.sendMail(ctx), step.ErrUnknown, "it stays unknown")
					n, err := step.AtMostOnce(ctx, "mail", h.failCharge, func(context.Context) (int32, error) { return 42, nil })
					assert.NoError(h, err)
					assert.EqualValues(h, 42, n, "whoever is asked knows")
				})
				require.Equal(t, before, h.sentMails)
			})
		})
	}
}

// lossyHarness is a harness on a store that loses its record.
type lossyHarness struct {
	*harness
	store     *stepStore
	sentMails int
}

// sendMail sends a mail at most once.
func (h *lossyHarness) sendMail(ctx context.Context) error {
	_, err := step.AtMostOnce(ctx, "mail", func(context.Context) (int, error) {
		h.sentMails++
		return h.sentMails, nil
	}, nil)
	return err
}

// loseRecord lets the record expire: for the given time, renewals do not reach the store.
func (h *lossyHarness) loseRecord(after time.Duration) {
	h.store.extendInstead.Store(new(func() error { return nil }))
	time.Sleep(after)
	h.store.extendInstead.Store(nil)
}

// A goroutine that outlives its handler does not run a step that has begun before the end of the attempt.
func TestAttemptThatEndsBeforeTheEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stepStore{Store: newMemoryStore()}
		h := newHarness(t, store)
		h.runAttempt(func(context.Context) {}) // so that the next one reads
		store.readTakes.Store(int64(time.Second))
		var left sync.WaitGroup
		h.runAttempt(func(ctx context.Context) {
			ctx = context.WithoutCancel(ctx)
			left.Go(func() {
				_, err := step.Do(ctx, "charge", h.countCharge)
				assert.ErrorIs(h, err, step.ErrMisuse)
				assert.ErrorContains(h, err, "attempt has ended")
			})
			synctest.Wait()
		})
		left.Wait()
		require.Zero(t, h.effect.Load())
	})
}

// The result of a step is stored even if the context has ended.
func TestEndedContextKeepsTheResult(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	h.runAttempt(func(ctx context.Context) {
		ctx, leave := context.WithCancel(ctx)
		n, err := step.Do(ctx, "charge", func(ctx context.Context) (int32, error) {
			leave()
			return h.countCharge(ctx)
		})
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)
		_, err = step.Do(ctx, "ship", h.countCharge)
		assert.Equal(h, context.Canceled, err)
	})
	h.runAttempt(func(ctx context.Context) {
		n, err := step.Do(ctx, "charge", h.countCharge)
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)
	})
}

// If the store fails, the step asks again until StoreTimeout. Then a step of Do may run again, and a step of AtMostOnce
// has not run.
func TestStoreThatFails(t *testing.T) {
	t.Parallel()
	store := &stepStore{Store: newMemoryStore()}
	h := newHarness(t, store, func(o *idempotency.RunnerOptions) { o.StoreTimeout = time.Second })
	h.runAttempt(func(ctx context.Context) {
		store.remainingFailures.Store(3)
		n, err := step.Do(ctx, "charge", h.countCharge)
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)

		store.remainingFailures.Store(math.MaxInt32)
		_, err = step.Do(ctx, "ship", h.countCharge)
		assert.ErrorIs(h, err, errDown)
		_, err = step.AtMostOnce(ctx, "mail", h.countCharge, nil)
		assert.ErrorIs(h, err, errDown)
		assert.EqualValues(h, 2, h.effect.Load(), "a step that must run at most once has not run")
		store.remainingFailures.Store(0)
	})
	h.runAttempt(func(ctx context.Context) {
		store.remainingFailures.Store(1)
		_, err := step.Do(ctx, "charge", h.countCharge)
		assert.ErrorIs(h, err, errDown, "what is there is not known")
		n, err := step.Do(ctx, "charge", h.countCharge)
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)
		n, err = step.Do(ctx, "ship", h.countCharge)
		assert.NoError(h, err)
		assert.EqualValues(h, 3, n)
	})
}

// Results of steps count against the quota of the user.
func TestQuotaOfAUser(t *testing.T) {
	t.Parallel()
	h := newHarness(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 100 << 10}))
	h.runAttempt(func(ctx context.Context) {
		_, err := step.Do(ctx, "large", func(context.Context) (string, error) { return strings.Repeat("x", 45<<10), nil })
		assert.ErrorIs(h, err, idempotency.ErrUserQuota)
		_, err = step.Do(ctx, "small", h.countCharge)
		assert.NoError(h, err)
	})
}

// Without a place for the result, a step does not run. Do with FailOpen is the exception, because FailOpen is there to
// run handlers.
func TestStepsWithoutAPlace(t *testing.T) {
	t.Parallel()
	bare := &stepStore{Store: newMemoryStore(), keepsNoSteps: true}
	h := newHarness(t, bare)
	h.runAttempt(func(ctx context.Context) {
		_, err := step.Do(ctx, "charge", h.countCharge)
		assert.ErrorIs(h, err, errors.ErrUnsupported)
	})
	require.Zero(t, h.effect.Load())

	failOpen := func(o *idempotency.RunnerOptions) { o.FailOpen = true }
	h = newHarness(t, &stepStore{Store: newMemoryStore(), grantsNoClaims: true}, failOpen)
	for want := range int32(2) {
		h.runAttempt(func(ctx context.Context) {
			n, err := step.Do(ctx, "charge", h.countCharge)
			assert.NoError(h, err)
			assert.Equal(h, want+1, n)
			_, err = step.AtMostOnce(ctx, "ship", h.countCharge, nil)
			assert.ErrorIs(h, err, errors.ErrUnsupported)
		})
	}
}

// An attempt with stored steps has had an effect, whatever its answer says, so its record is kept for TTL.
func TestStepsAreEffects(t *testing.T) {
	t.Parallel()
	store := newMemoryStore()
	h := newHarness(t, store)
	h.runAttempt(func(ctx context.Context) { idempotency.Decide(ctx, idempotency.Free) })
	_, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
	h.runAttempt(func(ctx context.Context) {
		idempotency.Decide(ctx, idempotency.Free)
		_, err := step.Do(ctx, "charge", h.countCharge)
		assert.NoError(h, err)
	})
	entry, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
	require.NoError(t, err)
	require.InDelta(t, 24*time.Hour, entry.Remaining, float64(10*time.Second))
}

// The tracer gets each step that begins, with wasFound and the error of the step. The context of the step is that of the
// tracer.
func TestTracer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	type span struct{}
	var told []string
	tracer := func(ctx context.Context, name string) (context.Context, func(bool, error)) {
		return context.WithValue(ctx, span{}, name), func(found bool, err error) {
			told = append(told, fmt.Sprint(name, " ", found, " ", err))
		}
	}
	for range 2 {
		h.runAttempt(func(ctx context.Context) {
			ctx = step.WithTracer(ctx, tracer)
			_, err := step.Do(ctx, "charge", func(ctx context.Context) (int, error) {
				assert.Equal(h, "charge", ctx.Value(span{}))
				return 1, nil
			})
			assert.NoError(h, err)
			_, _ = step.Do(ctx, "ship", h.failCharge)
			_, _ = step.Do(ctx, "bad name", h.failCharge)
			assert.Panics(h, func() { _, _ = step.Do(ctx, "mail", func(context.Context) (int, error) { panic(1) }) })
		})
	}
	require.Equal(t, []string{
		"charge false <nil>", "ship false provider is down", "mail false idempotency: step panicked or exited",
		"charge true <nil>", "ship false provider is down", "mail false idempotency: step panicked or exited",
	}, told)

	told = nil
	h.runAttempt(func(ctx context.Context) {
		_, _ = step.Do(step.WithTracer(ctx, tracer), "charge", func(context.Context) (string, error) { return "", nil })
	})
	require.Len(t, told, 1)
	require.Contains(t, told[0], "charge true idempotency: the step has run", "it does not fit into a string")
}

// If another writer has stored a result first, Do returns that result.
func TestFirstResultCounts(t *testing.T) {
	t.Parallel()
	store := &stepStore{Store: newMemoryStore(), earlierResult: []byte("41")}
	h := newHarness(t, store)
	h.runAttempt(func(ctx context.Context) {
		n, err := step.Do(ctx, "charge", h.countCharge)
		assert.NoError(h, err)
		assert.EqualValues(h, 41, n)
	})
}

// Do decodes the stored result even after the first run, so that a fault in a type shows at once.
func TestResultIsDecoded(t *testing.T) {
	t.Parallel()
	type receipt struct {
		ID     string
		secret string
	}
	h := newHarness(t, newMemoryStore())
	for range 2 {
		h.runAttempt(func(ctx context.Context) {
			got, err := step.Do(ctx, "charge", func(context.Context) (receipt, error) { return receipt{"ch_1", "x"}, nil })
			assert.NoError(h, err)
			assert.Equal(h, receipt{ID: "ch_1"}, got)
		})
	}
}

// stepStore is a store whose claims may fail in calls about steps.
type stepStore struct {
	idempotency.Store
	keepsNoSteps      bool         // its claims do not implement Checkpointer
	grantsNoClaims    bool         // Begin fails
	earlierResult     []byte       // stored by another writer before each checkpoint
	remainingFailures atomic.Int32 // how many calls about steps still fail with errDown
	permanentError    atomic.Pointer[error]
	extendInstead     atomic.Pointer[func() error] // replaces Extend of the claim

	readTakes, writeTakes atomic.Int64 // nanoseconds between the effect of a call about steps and its return
}

func (s *stepStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.grantsNoClaims {
		return idempotency.Record{}, nil, errDown
	}
	record, claim, err := s.Store.Begin(ctx, key, request)
	switch {
	case claim == nil:
		return record, nil, err
	case s.keepsNoSteps:
		return record, struct{ idempotency.Claim }{claim}, err
	}
	return record, stepClaim{claim.(idempotency.Checkpointer), s}, err
}

type stepClaim struct {
	idempotency.Checkpointer
	store *stepStore
}

func (c stepClaim) nextError() error {
	if err := c.store.permanentError.Load(); err != nil {
		return *err
	}
	if c.store.remainingFailures.Add(-1) >= 0 {
		return errDown
	}
	return nil
}

func (c stepClaim) Extend(ctx context.Context, lease time.Duration) error {
	if extend := c.store.extendInstead.Load(); extend != nil {
		return (*extend)()
	}
	return c.Checkpointer.Extend(ctx, lease)
}

func (c stepClaim) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	if err := c.nextError(); err != nil {
		return nil, err
	}
	defer func() { time.Sleep(time.Duration(c.store.writeTakes.Load())) }()
	if c.store.earlierResult != nil {
		_, _ = c.Checkpointer.Checkpoint(ctx, name, c.store.earlierResult)
	}
	return c.Checkpointer.Checkpoint(ctx, name, data)
}

func (c stepClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if err := c.nextError(); err != nil {
		return nil, err
	}
	defer func() { time.Sleep(time.Duration(c.store.readTakes.Load())) }()
	found, err := c.Checkpointer.Checkpoints(ctx)
	return maps.Clone(found), err
}

// A step after the end of an attempt without steps is ErrMisuse, not the error of a store without steps.
func TestAtMostOnceAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	var left context.Context
	h.runAttempt(func(ctx context.Context) { left = context.WithoutCancel(ctx) })
	_, err := step.AtMostOnce(left, "charge", h.countCharge, nil)
	require.ErrorIs(t, err, step.ErrMisuse)
	require.ErrorContains(t, err, "attempt has ended")
}

// A step of AtMostOnce does not begin if there is no room for its result.
func TestMarkAtTheBound(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	h.runAttempt(func(ctx context.Context) {
		for i := 1; i < step.MaxSteps; i++ {
			_, err := step.Do(ctx, fmt.Sprint("n", i), func(context.Context) (int, error) { return i, nil })
			assert.NoError(h, err)
		}
		_, err := step.AtMostOnce(ctx, "charge", h.countCharge, h.countCharge)
		assert.ErrorIs(h, err, step.ErrMisuse)
		assert.ErrorContains(h, err, "too many steps")
	})
	require.Zero(t, h.effect.Load())
}

// Every step of AtMostOnce that has begun has room for the result of ask.
func TestManyMarks(t *testing.T) {
	t.Parallel()
	store := newMemoryStore()
	h := newHarness(t, store)
	h.runAttempt(func(ctx context.Context) {
		var all sync.WaitGroup
		for i := range step.MaxSteps {
			all.Go(func() { _, _ = step.AtMostOnce(ctx, fmt.Sprint("n", i), h.failCharge, nil) })
		}
		all.Wait()
	})
	entry, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
	require.NoError(t, err)
	require.LessOrEqual(t, len(entry.Steps), step.MaxSteps/2)
	h.runAttempt(func(ctx context.Context) { // each one that was begun may be asked about
		for _, s := range entry.Steps {
			_, err := step.AtMostOnce(ctx, s.Name[:len(s.Name)-1], h.failCharge, h.countCharge)
			assert.NoError(h, err)
		}
	})
}

// An error of fn is treated as an error of fn, even if it wraps an error of package step.
func TestErrorLikeThatOfAStep(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	h.runAttempt(func(ctx context.Context) {
		inner := fmt.Errorf("another operation: %w", step.ErrResult)
		_, err := step.Do(ctx, "charge", func(context.Context) (int, error) { return 0, inner })
		assert.Equal(h, inner, err)
		_, err = step.Do(ctx, "charge", func(context.Context) (int, error) { return 1, nil })
		assert.NoError(h, err)
	})
}

// hangingKeeper is a Keeper that never replies.
type hangingKeeper struct{}

func (hangingKeeper) CheckLease() error { return nil }

func (hangingKeeper) Checkpoint(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hangingKeeper) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// fixedAttempt is an attempt with the given steps.
type fixedAttempt struct{ steps *checkpoint.Steps }

func (f fixedAttempt) Steps() *checkpoint.Steps { return f.steps }

// Concurrent steps wait for a silent store at the same time, not one after the other.
func TestHangingStore(t *testing.T) {
	t.Parallel()
	steps := &checkpoint.Steps{Keeper: hangingKeeper{}, HasClaim: true, MustLoad: true, Timeout: 300 * time.Millisecond}
	ctx := context.WithValue(t.Context(), checkpoint.Key{}, fixedAttempt{steps})
	began := time.Now()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			_, err := step.Do(ctx, fmt.Sprint("n", i), func(context.Context) (int, error) { return 1, nil })
			assert.Error(t, err)
		})
	}
	all.Wait()
	require.Less(t, time.Since(began), time.Second)
}

// After an answer that is too large has completed the operation, no step begins.
func TestStepBehindALargeAnswer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	service := testservice.Setup{Store: newMemoryStore(), Opts: idempotency.Options{MaxResponse: 100}}.Serve(t,
		func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat("x", 1000)))
			_, err := step.Do(r.Context(), "charge", h.countCharge)
			assert.ErrorIs(t, err, step.ErrMisuse)
		})
	require.Equal(t, 200, service.Post("k", "body").Status)
	require.Zero(t, h.effect.Load())
}
