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
	"unsafe"

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

// harness runs attempts at one operation.
type harness struct {
	*testing.T
	runner      *idempotency.Runner
	effectCount atomic.Int32 // of all steps
}

// newHarness returns a harness whose runner uses store and the edited options.
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

// countCharge is the function of a step. The result is the new count of effects.
func (h *harness) countCharge(context.Context) (int32, error) { return h.effectCount.Add(1), nil }

// failCharge has the effect of countCharge, and returns errDown.
func (h *harness) failCharge(context.Context) (int32, error) {
	h.effectCount.Add(1)
	return 0, errDown
}

// A step keeps its name although the caller uses the memory of the name again, as fiber does after a request.
func TestNameIsCopied(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	for range 2 {
		h.runAttempt(func(ctx context.Context) {
			name := []byte("charge")
			_, err := step.Do(ctx, unsafe.String(&name[0], len(name)), h.countCharge)
			assert.NoError(t, err)
			copy(name, "refund")
		})
	}
	require.EqualValues(t, 1, h.effectCount.Load())
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
			require.EqualValues(t, 1, h.effectCount.Load())
		})
	}
}

// A handler behind a real server continues where the previous attempt stopped, even after a panic.
func TestStepsOfAHandler(t *testing.T) {
	t.Parallel()
	var reserved, charged, runs atomic.Int32
	service := testservice.Setup{Store: newMemoryStore()}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		id, err := step.Do(r.Context(), "reserve", func(context.Context) (string, error) {
			return fmt.Sprint("r", reserved.Add(1)), nil
		})
		assert.NoError(t, err)
		if runs.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		receipt, err := step.Do(r.Context(), "charge", func(context.Context) (map[string]string, error) {
			return map[string]string{"of": id, "n": fmt.Sprint(charged.Add(1))}, nil
		})
		assert.NoError(t, err)
		if runs.Load() == 2 {
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
	require.EqualValues(t, 1, h.effectCount.Load())
}

// Errors of the program are reported as ErrMisuse, and the step does not run.
func TestMisuse(t *testing.T) {
	t.Parallel()
	requireMisuse := func(h *harness, ctx context.Context, name, reason string) {
		h.Helper()
		_, err := step.Do(ctx, name, h.countCharge)
		assert.ErrorIs(h, err, step.ErrMisuse)
		assert.ErrorContains(h, err, reason)
	}
	h := newHarness(t, newMemoryStore())
	requireMisuse(h, context.Background(), "charge", "belongs to no operation")

	var left context.Context
	h.runAttempt(func(ctx context.Context) {
		left = context.WithoutCancel(ctx)
		for _, name := range []string{"", "two words", "mark?", "ä", "\n", strings.Repeat("n", step.MaxName+1)} {
			requireMisuse(h, ctx, name, "name is invalid")
		}
		_, err := step.Do(ctx, "outer", func(ctx context.Context) (int, error) {
			requireMisuse(h, ctx, "inner", "within another step")
			requireMisuse(h, ctx, "outer", "within another step")
			return 1, nil
		})
		assert.NoError(h, err)
		requireMisuse(h, ctx, "outer", "begun a step of this name before")
		for i := 1; i < step.MaxSteps; i++ {
			_, err := step.Do(ctx, fmt.Sprint("n", i), func(context.Context) (int, error) { return i, nil })
			assert.NoError(h, err)
		}
		requireMisuse(h, ctx, "one-more", "too many steps")
	})
	requireMisuse(h, left, "charge", "attempt has ended")
	h.runAttempt(func(ctx context.Context) {
		requireMisuse(h, ctx, "one-more", "too many steps")
		n, err := step.Do(ctx, "n7", func(context.Context) (int, error) { return 0, errDown })
		assert.NoError(h, err)
		assert.Equal(h, 7, n)
	})
	h.runAttempt(func(ctx context.Context) { left = context.WithoutCancel(ctx) }) // without a step
	requireMisuse(h, left, "charge", "attempt has ended")
	require.Zero(t, h.effectCount.Load())
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
							ready.Wait() // until all steps run
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
func TestResultThatCannotBeStoredOrDecoded(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", step.MaxResult-2) // with its quotes, as large as a result may be
	for name, c := range map[string]struct {
		result    any
		wantError string
	}{
		"not JSON":  {math.NaN(), "unsupported value"},
		"too large": {big + "x", "the result has 65537 bytes, and may have 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newMemoryStore())
			requireError := func(wantError string) func(ctx context.Context) {
				return func(ctx context.Context) {
					_, err := step.Do(ctx, "charge", func(context.Context) (any, error) {
						h.effectCount.Add(1)
						return c.result, nil
					})
					assert.ErrorIs(h, err, step.ErrResult)
					assert.ErrorContains(h, err, wantError)
				}
			}
			h.runAttempt(requireError(c.wantError))
			h.runAttempt(requireError("could not be kept"))
			require.EqualValues(t, 1, h.effectCount.Load())
		})
	}
	t.Run("results too large together", func(t *testing.T) {
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
	t.Run("result of another type", func(t *testing.T) {
		h := newHarness(t, newMemoryStore())
		h.runAttempt(func(ctx context.Context) {
			_, err := step.Do(ctx, "charge", func(context.Context) (string, error) { return "ch_1", nil })
			assert.NoError(h, err)
		})
		h.runAttempt(func(ctx context.Context) { // by the next version of the service
			_, err := step.Do(ctx, "charge", h.countCharge)
			assert.ErrorIs(h, err, step.ErrResult)
			assert.ErrorContains(h, err, "cannot unmarshal string")
		})
		require.Zero(t, h.effectCount.Load())
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
	require.EqualValues(t, 1, h.effectCount.Load())
}

// An attempt that loses its claim during a call of the store does not run the step. Otherwise the effect could happen
// twice: the next attempt may find the mark, learn from ask that nothing has happened, and have the effect itself.
func TestClaimLostBeforeTheEffect(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		runStep     func(ctx context.Context, send, ask func(context.Context) (int32, error)) (int32, error)
		chooseDelay func(*stepStore) *atomic.Int64
	}{
		"AtMostOnce, while the mark is stored": {
			func(ctx context.Context, send, ask func(context.Context) (int32, error)) (int32, error) {
				return step.AtMostOnce(ctx, "mail", send, ask)
			},
			func(s *stepStore) *atomic.Int64 { return &s.writeDelay },
		},
		"Do, while the results are read": {
			func(ctx context.Context, send, _ func(context.Context) (int32, error)) (int32, error) {
				return step.Do(ctx, "mail", send)
			},
			func(s *stepStore) *atomic.Int64 { return &s.readDelay },
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &stepStore{Store: newMemoryStore()}
				h := newHarness(t, store, func(o *idempotency.RunnerOptions) { o.StoreTimeout = 20 * time.Second })
				h.runAttempt(func(context.Context) {}) // so that the next attempt reads the results
				c.chooseDelay(store).Store(int64(15 * time.Second))
				store.extendOverride.Store(new(func() error { return errDown }))
				send := func(ctx context.Context) (int32, error) {
					op, _ := idempotency.FromContext(ctx)
					assert.Equal(h, 3, op.Attempt, "this attempt may send")
					return h.effectCount.Add(1), nil
				}
				ask := func(ctx context.Context) (int32, error) { return send(ctx) } // finds that no mail was sent, and sends the mail
				var both sync.WaitGroup
				both.Go(func() {
					h.runAttempt(func(ctx context.Context) {
						time.Sleep(25 * time.Second) // every renewal of the lease fails in this time
						_, err := c.runStep(ctx, send, ask)
						assert.ErrorIs(h, err, idempotency.ErrClaimLost)
					})
				})
				time.Sleep(31 * time.Second)
				c.chooseDelay(store).Store(0)
				h.runAttempt(func(ctx context.Context) {
					_, err := c.runStep(ctx, send, ask)
					assert.NoError(h, err)
				})
				both.Wait()
				require.EqualValues(t, 1, h.effectCount.Load())
			})
		})
	}
}

// If the store has lost the record with the marks of earlier attempts, a step of AtMostOnce may have begun, and its
// result is unknown. An attempt that has read the marks before the loss still has the marks.
func TestLostRecordIsUnknown(t *testing.T) {
	t.Parallel()
	const renewed = 30 * time.Second // in this time the lease is renewed
	const lost = 2 * time.Minute     // in this time the record expires if no renewal reaches the store
	for name, c := range map[string]struct {
		firstAttempt, secondAttempt func(h *lossyHarness, ctx context.Context)
		isUnknown                   bool
	}{
		"lost during the second attempt, and detected by the step": {
			firstAttempt:  func(h *lossyHarness, ctx context.Context) { h.sendMail(ctx) },
			secondAttempt: func(h *lossyHarness, _ context.Context) { h.loseRecord(lost) },
			isUnknown:     true,
		},
		"lost during the second attempt, and detected by a renewal": {
			firstAttempt:  func(h *lossyHarness, ctx context.Context) { h.sendMail(ctx) },
			secondAttempt: func(h *lossyHarness, _ context.Context) { h.loseRecord(lost); time.Sleep(renewed) },
			isUnknown:     true,
		},
		"lost during the first attempt": {
			firstAttempt:  func(h *lossyHarness, ctx context.Context) { h.sendMail(ctx); h.loseRecord(lost); time.Sleep(renewed) },
			secondAttempt: func(*lossyHarness, context.Context) {},
			isUnknown:     true,
		},
		"lost after the second attempt has read its steps": {
			firstAttempt: func(*lossyHarness, context.Context) {},
			secondAttempt: func(h *lossyHarness, ctx context.Context) {
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
				h.runAttempt(func(ctx context.Context) { c.firstAttempt(h, ctx) })
				if !c.isUnknown {
					h.runAttempt(func(ctx context.Context) {
						c.secondAttempt(h, ctx)
						assert.NoError(h, h.sendMail(ctx))
						_, err := step.Do(ctx, "charge", h.countCharge)
						assert.NoError(h, err)
					})
					return
				}
				sentBefore := h.sentMails
				h.runAttempt(func(ctx context.Context) {
					c.secondAttempt(h, ctx)
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
				require.Equal(t, sentBefore, h.sentMails)
			})
		})
	}
}

// lossyHarness is a harness whose store can lose the record of the operation.
type lossyHarness struct {
	*harness
	store     *stepStore
	sentMails int
}

// sendMail sends a mail in a step of AtMostOnce.
func (h *lossyHarness) sendMail(ctx context.Context) error {
	_, err := step.AtMostOnce(ctx, "mail", func(context.Context) (int, error) {
		h.sentMails++
		return h.sentMails, nil
	}, nil)
	return err
}

// loseRecord lets the record expire. Until after has passed, renewals of the lease succeed without reaching the store.
func (h *lossyHarness) loseRecord(after time.Duration) {
	h.store.extendOverride.Store(new(func() error { return nil }))
	time.Sleep(after)
	h.store.extendOverride.Store(nil)
}

// A goroutine that outlives its handler does not run a step that has begun before the end of the attempt.
func TestAttemptThatEndsBeforeTheEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stepStore{Store: newMemoryStore()}
		h := newHarness(t, store)
		h.runAttempt(func(context.Context) {}) // so that the next attempt reads the results
		store.readDelay.Store(int64(time.Second))
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
		require.Zero(t, h.effectCount.Load())
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

// If the store fails, the step repeats the call until StoreTimeout. If all calls fail, a step of Do may run again in the
// next attempt, and a step of AtMostOnce has not run.
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
		assert.EqualValues(h, 2, h.effectCount.Load(), "a step that must run at most once has not run")
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

// If no store keeps the result, a step does not run. Do with FailOpen is the exception, because FailOpen exists to run
// handlers without a store.
func TestStepsThatNoStoreKeeps(t *testing.T) {
	t.Parallel()
	bare := &stepStore{Store: newMemoryStore(), keepsNoSteps: true}
	h := newHarness(t, bare)
	h.runAttempt(func(ctx context.Context) {
		_, err := step.Do(ctx, "charge", h.countCharge)
		assert.ErrorIs(h, err, errors.ErrUnsupported)
	})
	require.Zero(t, h.effectCount.Load())

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

// An attempt with stored steps has had an effect, so its record is kept for TTL even if the handler decides Free.
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

// The tracer gets each step that begins, with wasFound and the error of the step. The step runs with the context that the
// tracer returns.
func TestTracer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	type span struct{}
	var traced []string
	tracer := func(ctx context.Context, name string) (context.Context, func(bool, error)) {
		return context.WithValue(ctx, span{}, name), func(found bool, err error) {
			traced = append(traced, fmt.Sprint(name, " ", found, " ", err))
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
	}, traced)

	traced = nil
	h.runAttempt(func(ctx context.Context) {
		_, _ = step.Do(step.WithTracer(ctx, tracer), "charge", func(context.Context) (string, error) { return "", nil })
	})
	require.Len(t, traced, 1)
	require.Contains(t, traced[0], "charge true idempotency: the step has run", "it does not fit into a string")
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
	keepsNoSteps      bool                         // its claims do not implement Checkpointer
	grantsNoClaims    bool                         // Begin fails
	earlierResult     []byte                       // stored by another writer before each checkpoint
	remainingFailures atomic.Int32                 // how many calls about steps still fail with errDown
	permanentError    atomic.Pointer[error]        // of all calls about steps
	extendOverride    atomic.Pointer[func() error] // called instead of Extend

	readDelay, writeDelay atomic.Int64 // nanoseconds between the effect of a call about steps and its return
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

// nextError returns the error of the next call about steps.
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
	if extend := c.store.extendOverride.Load(); extend != nil {
		return (*extend)()
	}
	return c.Checkpointer.Extend(ctx, lease)
}

func (c stepClaim) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	if err := c.nextError(); err != nil {
		return nil, err
	}
	defer func() { time.Sleep(time.Duration(c.store.writeDelay.Load())) }()
	if c.store.earlierResult != nil {
		_, _ = c.Checkpointer.Checkpoint(ctx, name, c.store.earlierResult)
	}
	return c.Checkpointer.Checkpoint(ctx, name, data)
}

func (c stepClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if err := c.nextError(); err != nil {
		return nil, err
	}
	defer func() { time.Sleep(time.Duration(c.store.readDelay.Load())) }()
	found, err := c.Checkpointer.Checkpoints(ctx)
	return maps.Clone(found), err
}

// A step after the end of an attempt returns ErrMisuse. If the attempt had no steps, the error must still differ from the
// error of a store that keeps no steps.
func TestAtMostOnceAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemoryStore())
	var left context.Context
	h.runAttempt(func(ctx context.Context) { left = context.WithoutCancel(ctx) })
	_, err := step.AtMostOnce(left, "charge", h.countCharge, nil)
	require.ErrorIs(t, err, step.ErrMisuse)
	require.ErrorContains(t, err, "attempt has ended")
}

// A step of AtMostOnce begins only if the operation has room for both the mark and the result.
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
	require.Zero(t, h.effectCount.Load())
}

// Every step of AtMostOnce that has begun has room for the result of ask, even if many steps begin at the same time.
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
	h.runAttempt(func(ctx context.Context) { // ask runs for each step that has begun
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

// hangingKeeper is a Keeper that replies only when the context ends.
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

// Concurrent steps wait for a silent store in parallel, so eight steps end after one Timeout.
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
	require.Zero(t, h.effectCount.Load())
}
