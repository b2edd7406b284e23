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

// harness runs attempts at one operation.
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
	testservice.GiveUpAtTheEnd(t, runner)
	return &harness{T: t, runner: runner}
}

func newMemory() *idempotency.MemoryStore {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

// attempt runs a handler that fails behind what it does, so that there may be a next attempt.
func (h *harness) attempt(handler func(ctx context.Context)) {
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

// charge is a step that returns how often it has run.
func (h *harness) charge(context.Context) (int32, error) { return h.effect.Add(1), nil }

func (h *harness) down(context.Context) (int32, error) {
	h.effect.Add(1)
	return 0, errDown
}

// A step that has a result does not run in a later attempt.
func TestStepRunsOnce(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(ctx context.Context, h *harness) (int32, error){
		"Do": func(ctx context.Context, h *harness) (int32, error) { return step.Do(ctx, "charge", h.charge) },
		"AtMostOnce": func(ctx context.Context, h *harness) (int32, error) {
			return step.AtMostOnce(ctx, "charge", h.charge, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newMemory())
			for range 3 {
				h.attempt(func(ctx context.Context) {
					n, err := run(ctx, h)
					assert.NoError(h, err)
					assert.EqualValues(h, 1, n)
				})
			}
			require.EqualValues(t, 1, h.effect.Load())
		})
	}
}

// A handler behind a real server goes on where an attempt has stopped, also if that has panicked.
func TestStepsOfAHandler(t *testing.T) {
	t.Parallel()
	var reserved, charged, failed atomic.Int32
	service := testservice.Setup{Store: newMemory()}.Serve(t, func(w http.ResponseWriter, r *http.Request) {
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

// What fn fails with is returned as it is, and nothing is stored: neither of an error nor of a panic.
func TestFailedStepStoresNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	h.attempt(func(ctx context.Context) {
		_, err := step.Do(ctx, "charge", h.down)
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
		n, err := step.Do(ctx, "charge", h.charge)
		assert.NoError(h, err)
		assert.EqualValues(h, 2, n, "it may run again in the same attempt")
	})
}

// A step that was begun and has no result is not run again: whoever can tells what has become of it.
func TestAtMostOnce(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	h.attempt(func(ctx context.Context) {
		_, err := step.AtMostOnce(ctx, "charge", h.down, nil)
		assert.Equal(h, errDown, err)
		_, err = step.AtMostOnce(ctx, "charge", h.charge, nil)
		assert.ErrorIs(h, err, step.ErrUnknown)
	})
	h.attempt(func(ctx context.Context) {
		_, err := step.AtMostOnce(ctx, "charge", h.charge, nil)
		assert.ErrorIs(h, err, step.ErrUnknown)
		_, err = step.AtMostOnce(ctx, "charge", h.charge, func(context.Context) (int32, error) { return 0, errDown })
		assert.Equal(h, errDown, err, "who is asked does not know")
		n, err := step.AtMostOnce(ctx, "charge", h.charge, func(context.Context) (int32, error) { return 42, nil })
		assert.NoError(h, err)
		assert.EqualValues(h, 42, n)
	})
	h.attempt(func(ctx context.Context) {
		n, err := step.AtMostOnce(ctx, "charge", h.charge, nil)
		assert.NoError(h, err)
		assert.EqualValues(h, 42, n, "what was found out is the result")
	})
	require.EqualValues(t, 1, h.effect.Load())
}

// Mistakes of a program are told, and the step does not run.
func TestMisuse(t *testing.T) {
	t.Parallel()
	misused := func(h *harness, ctx context.Context, name, why string) {
		h.Helper()
		_, err := step.Do(ctx, name, h.charge)
		assert.ErrorIs(h, err, step.ErrMisuse)
		assert.ErrorContains(h, err, why)
	}
	h := newHarness(t, newMemory())
	misused(h, context.Background(), "charge", "belongs to no operation")

	var left context.Context
	h.attempt(func(ctx context.Context) {
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
	h.attempt(func(ctx context.Context) {
		misused(h, ctx, "one-more", "too many steps")
		n, err := step.Do(ctx, "n7", func(context.Context) (int, error) { return 0, errDown })
		assert.NoError(h, err)
		assert.Equal(h, 7, n)
	})
	h.attempt(func(ctx context.Context) { left = context.WithoutCancel(ctx) }) // without a step
	misused(h, left, "charge", "attempt has ended")
	require.Zero(t, h.effect.Load())
}

// Of one name, one step runs at a time. Steps of different names run together.
func TestConcurrentSteps(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	for attempt := range 2 {
		h.attempt(func(ctx context.Context) {
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

// A step of which no result can be had is not run again silently.
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
			h := newHarness(t, newMemory())
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
			h.attempt(run(c.why))
			h.attempt(run("could not be kept"))
			require.EqualValues(t, 1, h.effect.Load())
		})
	}
	t.Run("too large together", func(t *testing.T) {
		h := newHarness(t, newMemory())
		h.attempt(func(ctx context.Context) {
			for i := range step.MaxTotal/step.MaxResult - 1 {
				_, err := step.Do(ctx, fmt.Sprint(i), func(context.Context) (string, error) { return big, nil })
				assert.NoError(h, err)
			}
			_, err := step.Do(ctx, "last", func(context.Context) (string, error) { return big, nil })
			assert.ErrorIs(h, err, step.ErrResult)
			assert.ErrorContains(h, err, "all results together")
			_, err = step.Do(ctx, "small", h.charge)
			assert.NoError(h, err)
		})
		h.attempt(func(ctx context.Context) {
			_, err := step.Do(ctx, "last", func(context.Context) (string, error) { return "again", nil })
			assert.ErrorIs(h, err, step.ErrResult)
		})
	})
	t.Run("of another type", func(t *testing.T) {
		h := newHarness(t, newMemory())
		h.attempt(func(ctx context.Context) {
			_, err := step.Do(ctx, "charge", func(context.Context) (string, error) { return "ch_1", nil })
			assert.NoError(h, err)
		})
		h.attempt(func(ctx context.Context) { // of the next version of the service
			_, err := step.Do(ctx, "charge", h.charge)
			assert.ErrorIs(h, err, step.ErrResult)
			assert.ErrorContains(h, err, "cannot unmarshal string")
		})
		require.Zero(t, h.effect.Load())
	})
}

// An owner that has lost its claim does not run a step, and a step that has run does not count.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	store := &stepStore{Store: newMemory()}
	h := newHarness(t, store)
	h.attempt(func(ctx context.Context) {
		store.fails.Store(&idempotency.ErrClaimLost)
		_, err := step.Do(ctx, "charge", h.charge)
		assert.ErrorIs(h, err, idempotency.ErrClaimLost)
		store.fails.Store(nil)

		lost, lose := context.WithCancelCause(ctx)
		_, err = step.Do(lost, "ship", func(context.Context) (int, error) {
			lose(idempotency.ErrClaimLost)
			return 1, nil
		})
		assert.ErrorIs(h, err, idempotency.ErrClaimLost)
		_, err = step.Do(lost, "mail", h.charge)
		assert.Equal(h, idempotency.ErrClaimLost, err)
	})
	require.EqualValues(t, 1, h.effect.Load())
}

// An attempt that has lost its claim while the store was asked does not run its step: by then, the next attempt may have
// found that the step was begun, have heard that nothing has happened, and have done it.
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
				store := &stepStore{Store: newMemory()}
				h := newHarness(t, store, func(o *idempotency.RunnerOptions) { o.StoreTimeout = 20 * time.Second })
				h.attempt(func(context.Context) {}) // so that the next one reads
				c.slow(store).Store(int64(15 * time.Second))
				store.extend.Store(new(func() error { return errDown }))
				send := func(ctx context.Context) (int32, error) {
					op, _ := idempotency.FromContext(ctx)
					assert.Equal(h, 3, op.Attempt, "this attempt may send")
					return h.effect.Add(1), nil
				}
				ask := func(ctx context.Context) (int32, error) { return send(ctx) } // nothing was sent
				var both sync.WaitGroup
				both.Go(func() {
					h.attempt(func(ctx context.Context) {
						time.Sleep(25 * time.Second) // its lease is renewed no more
						_, err := c.run(ctx, send, ask)
						assert.ErrorIs(h, err, idempotency.ErrClaimLost)
					})
				})
				time.Sleep(31 * time.Second)
				c.slow(store).Store(0)
				h.attempt(func(ctx context.Context) {
					_, err := c.run(ctx, send, ask)
					assert.NoError(h, err)
				})
				both.Wait()
				require.EqualValues(t, 1, h.effect.Load())
			})
		})
	}
}

// When the store has lost the record, and so the mark of an earlier attempt, nobody knows whether a step of AtMostOnce has
// begun. What earlier attempts have stored is known to an attempt that has read it before the loss.
func TestLostRecordIsUnknown(t *testing.T) {
	t.Parallel()
	const renewed = 30 * time.Second // the lease is renewed in this time
	const lost = 2 * time.Minute     // the record, if nothing renews it in this time
	for name, c := range map[string]struct {
		first, second func(h *lossy, ctx context.Context)
		unknown       bool
	}{
		"lost by the second attempt, and seen by the step": {
			first:   func(h *lossy, ctx context.Context) { h.mail(ctx) },
			second:  func(h *lossy, _ context.Context) { h.lose(lost) },
			unknown: true,
		},
		"lost by the second attempt, and seen by a renewal": {
			first:   func(h *lossy, ctx context.Context) { h.mail(ctx) },
			second:  func(h *lossy, _ context.Context) { h.lose(lost); time.Sleep(renewed) },
			unknown: true,
		},
		"lost by the first attempt": {
			first:   func(h *lossy, ctx context.Context) { h.mail(ctx); h.lose(lost); time.Sleep(renewed) },
			second:  func(*lossy, context.Context) {},
			unknown: true,
		},
		"lost when the second attempt had read its steps": {
			first: func(*lossy, context.Context) {},
			second: func(h *lossy, ctx context.Context) {
				_, err := step.Do(ctx, "reserve", h.charge)
				assert.NoError(h, err)
				h.lose(lost)
				time.Sleep(renewed)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := &stepStore{Store: newMemory()}
				h := &lossy{harness: newHarness(t, store, func(o *idempotency.RunnerOptions) {
					o.Lease, o.TTL = time.Minute, time.Minute
				}), store: store}
				h.attempt(func(ctx context.Context) { c.first(h, ctx) })
				if !c.unknown {
					h.attempt(func(ctx context.Context) {
						c.second(h, ctx)
						assert.NoError(h, h.mail(ctx))
						_, err := step.Do(ctx, "charge", h.charge)
						assert.NoError(h, err)
					})
					return
				}
				before := h.mails
				h.attempt(func(ctx context.Context) {
					c.second(h, ctx)
					assert.ErrorIs(h, h.mail(ctx), step.ErrUnknown)
					n, err := step.Do(ctx, "charge", h.charge)
					assert.NoError(h, err)
					assert.EqualValues(h, 1, n, "a step that may run again does")
				})
				h.attempt(func(ctx context.Context) {
					assert.ErrorIs(h, h.mail(ctx), step.ErrUnknown, "it stays unknown")
					n, err := step.AtMostOnce(ctx, "mail", h.down, func(context.Context) (int32, error) { return 42, nil })
					assert.NoError(h, err)
					assert.EqualValues(h, 42, n, "whoever is asked knows")
				})
				require.Equal(t, before, h.mails)
			})
		})
	}
}

// lossy is a harness on a store that loses its record.
type lossy struct {
	*harness
	store *stepStore
	mails int
}

// mail sends a mail at most once, and fails.
func (h *lossy) mail(ctx context.Context) error {
	_, err := step.AtMostOnce(ctx, "mail", func(context.Context) (int, error) {
		h.mails++
		return h.mails, nil
	}, nil)
	return err
}

// lose waits until the record has expired, since nothing of the renewals has reached the store.
func (h *lossy) lose(after time.Duration) {
	h.store.extend.Store(new(func() error { return nil }))
	time.Sleep(after)
	h.store.extend.Store(nil)
}

// A goroutine that outlives its handler does not run the step that it has begun before.
func TestAttemptThatEndsBeforeTheEffect(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &stepStore{Store: newMemory()}
		h := newHarness(t, store)
		h.attempt(func(context.Context) {}) // so that the next one reads
		store.readTakes.Store(int64(time.Second))
		var left sync.WaitGroup
		h.attempt(func(ctx context.Context) {
			ctx = context.WithoutCancel(ctx)
			left.Go(func() {
				_, err := step.Do(ctx, "charge", h.charge)
				assert.ErrorIs(h, err, step.ErrMisuse)
				assert.ErrorContains(h, err, "attempt has ended")
			})
			synctest.Wait()
		})
		left.Wait()
		require.Zero(t, h.effect.Load())
	})
}

// A step whose client has left, or whose time is up, is stored all the same.
func TestEndedContextKeepsTheResult(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	h.attempt(func(ctx context.Context) {
		ctx, leave := context.WithCancel(ctx)
		n, err := step.Do(ctx, "charge", func(ctx context.Context) (int32, error) {
			leave()
			return h.charge(ctx)
		})
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)
		_, err = step.Do(ctx, "ship", h.charge)
		assert.Equal(h, context.Canceled, err)
	})
	h.attempt(func(ctx context.Context) {
		n, err := step.Do(ctx, "charge", h.charge)
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)
	})
}

// A store that fails is asked again until StoreTimeout. Then the step may run again, unless it must not.
func TestStoreThatFails(t *testing.T) {
	t.Parallel()
	store := &stepStore{Store: newMemory()}
	h := newHarness(t, store, func(o *idempotency.RunnerOptions) { o.StoreTimeout = time.Second })
	h.attempt(func(ctx context.Context) {
		store.failures.Store(3)
		n, err := step.Do(ctx, "charge", h.charge)
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)

		store.failures.Store(math.MaxInt32)
		_, err = step.Do(ctx, "ship", h.charge)
		assert.ErrorIs(h, err, errDown)
		_, err = step.AtMostOnce(ctx, "mail", h.charge, nil)
		assert.ErrorIs(h, err, errDown)
		assert.EqualValues(h, 2, h.effect.Load(), "a step that must run at most once has not run")
		store.failures.Store(0)
	})
	h.attempt(func(ctx context.Context) {
		store.failures.Store(1)
		_, err := step.Do(ctx, "charge", h.charge)
		assert.ErrorIs(h, err, errDown, "what is there is not known")
		n, err := step.Do(ctx, "charge", h.charge)
		assert.NoError(h, err)
		assert.EqualValues(h, 1, n)
		n, err = step.Do(ctx, "ship", h.charge)
		assert.NoError(h, err)
		assert.EqualValues(h, 3, n)
	})
}

// The quota of a user counts steps.
func TestQuotaOfAUser(t *testing.T) {
	t.Parallel()
	h := newHarness(t, idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 100 << 10}))
	h.attempt(func(ctx context.Context) {
		_, err := step.Do(ctx, "large", func(context.Context) (string, error) { return strings.Repeat("x", 45<<10), nil })
		assert.ErrorIs(h, err, idempotency.ErrUserQuota)
		_, err = step.Do(ctx, "small", h.charge)
		assert.NoError(h, err)
	})
}

// Where nothing keeps the result, a step does not run, but for FailOpen, which is there to run handlers.
func TestStepsWithoutAPlace(t *testing.T) {
	t.Parallel()
	bare := &stepStore{Store: newMemory(), bare: true}
	h := newHarness(t, bare)
	h.attempt(func(ctx context.Context) {
		_, err := step.Do(ctx, "charge", h.charge)
		assert.ErrorIs(h, err, errors.ErrUnsupported)
	})
	require.Zero(t, h.effect.Load())

	h = newHarness(t, &stepStore{Store: newMemory(), down: true}, func(o *idempotency.RunnerOptions) { o.FailOpen = true })
	for want := range int32(2) {
		h.attempt(func(ctx context.Context) {
			n, err := step.Do(ctx, "charge", h.charge)
			assert.NoError(h, err)
			assert.Equal(h, want+1, n)
			_, err = step.AtMostOnce(ctx, "ship", h.charge, nil)
			assert.ErrorIs(h, err, errors.ErrUnsupported)
		})
	}
}

// An attempt whose steps are stored has done something, whatever its answer says: its record is kept for TTL.
func TestStepsAreEffects(t *testing.T) {
	t.Parallel()
	store := newMemory()
	h := newHarness(t, store)
	h.attempt(func(ctx context.Context) { idempotency.Decide(ctx, idempotency.Free) })
	_, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
	h.attempt(func(ctx context.Context) {
		idempotency.Decide(ctx, idempotency.Free)
		_, err := step.Do(ctx, "charge", h.charge)
		assert.NoError(h, err)
	})
	entry, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
	require.NoError(t, err)
	require.InDelta(t, 24*time.Hour, entry.Remaining, float64(10*time.Second))
}

// A tracer is told of each step, of whether it was found, and of its error; the context of the step is that of the tracer.
func TestTracer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	type span struct{}
	var told []string
	tracer := func(ctx context.Context, name string) (context.Context, func(bool, error)) {
		return context.WithValue(ctx, span{}, name), func(found bool, err error) {
			told = append(told, fmt.Sprint(name, " ", found, " ", err))
		}
	}
	for range 2 {
		h.attempt(func(ctx context.Context) {
			ctx = step.WithTracer(ctx, tracer)
			_, err := step.Do(ctx, "charge", func(ctx context.Context) (int, error) {
				assert.Equal(h, "charge", ctx.Value(span{}))
				return 1, nil
			})
			assert.NoError(h, err)
			_, _ = step.Do(ctx, "ship", h.down)
			_, _ = step.Do(ctx, "bad name", h.down)
			assert.Panics(h, func() { _, _ = step.Do(ctx, "mail", func(context.Context) (int, error) { panic(1) }) })
		})
	}
	require.Equal(t, []string{
		"charge false <nil>", "ship false provider is down", "mail false idempotency: step panicked or exited",
		"charge true <nil>", "ship false provider is down", "mail false idempotency: step panicked or exited",
	}, told)

	told = nil
	h.attempt(func(ctx context.Context) {
		_, _ = step.Do(step.WithTracer(ctx, tracer), "charge", func(context.Context) (string, error) { return "", nil })
	})
	require.Len(t, told, 1)
	require.Contains(t, told[0], "charge true idempotency: the step has run", "it does not fit into a string")
}

// If the attempt has stored another result under the name before, that one counts.
func TestFirstResultCounts(t *testing.T) {
	t.Parallel()
	store := &stepStore{Store: newMemory(), before: []byte("41")}
	h := newHarness(t, store)
	h.attempt(func(ctx context.Context) {
		n, err := step.Do(ctx, "charge", h.charge)
		assert.NoError(h, err)
		assert.EqualValues(h, 41, n)
	})
}

// The result is decoded from what is stored, also the first time: a mistake in a type shows at once.
func TestResultIsDecoded(t *testing.T) {
	t.Parallel()
	type receipt struct {
		ID     string
		secret string
	}
	h := newHarness(t, newMemory())
	for range 2 {
		h.attempt(func(ctx context.Context) {
			got, err := step.Do(ctx, "charge", func(context.Context) (receipt, error) { return receipt{"ch_1", "x"}, nil })
			assert.NoError(h, err)
			assert.Equal(h, receipt{ID: "ch_1"}, got)
		})
	}
}

// stepStore is a store whose claims may fail at steps.
type stepStore struct {
	idempotency.Store
	bare     bool         // its claims keep no checkpoints
	down     bool         // it grants no claims
	before   []byte       // what another writer has stored before each checkpoint
	failures atomic.Int32 // so many questions fail
	fails    atomic.Pointer[error]
	extend   atomic.Pointer[func() error] // instead of that of the claim

	readTakes, writeTakes atomic.Int64 // nanoseconds for which the answer to a question about steps is on its way
}

func (s *stepStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.down {
		return idempotency.Record{}, nil, errDown
	}
	record, claim, err := s.Store.Begin(ctx, key, request)
	switch {
	case claim == nil:
		return record, nil, err
	case s.bare:
		return record, struct{ idempotency.Claim }{claim}, err
	}
	return record, stepClaim{claim.(idempotency.Checkpointer), s}, err
}

type stepClaim struct {
	idempotency.Checkpointer
	store *stepStore
}

func (c stepClaim) fail() error {
	if err := c.store.fails.Load(); err != nil {
		return *err
	}
	if c.store.failures.Add(-1) >= 0 {
		return errDown
	}
	return nil
}

func (c stepClaim) Extend(ctx context.Context, lease time.Duration) error {
	if extend := c.store.extend.Load(); extend != nil {
		return (*extend)()
	}
	return c.Checkpointer.Extend(ctx, lease)
}

func (c stepClaim) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	if err := c.fail(); err != nil {
		return nil, err
	}
	defer func() { time.Sleep(time.Duration(c.store.writeTakes.Load())) }()
	if c.store.before != nil {
		_, _ = c.Checkpointer.Checkpoint(ctx, name, c.store.before)
	}
	return c.Checkpointer.Checkpoint(ctx, name, data)
}

func (c stepClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if err := c.fail(); err != nil {
		return nil, err
	}
	defer func() { time.Sleep(time.Duration(c.store.readTakes.Load())) }()
	found, err := c.Checkpointer.Checkpoints(ctx)
	return maps.Clone(found), err
}

// An attempt without steps that has ended is told from a store that keeps none.
func TestAtMostOnceAfterTheEnd(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	var left context.Context
	h.attempt(func(ctx context.Context) { left = context.WithoutCancel(ctx) })
	_, err := step.AtMostOnce(left, "charge", h.charge, nil)
	require.ErrorIs(t, err, step.ErrMisuse)
	require.ErrorContains(t, err, "attempt has ended")
}

// A step of AtMostOnce does not begin if there is no room for its result.
func TestMarkAtTheBound(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	h.attempt(func(ctx context.Context) {
		for i := 1; i < step.MaxSteps; i++ {
			_, err := step.Do(ctx, fmt.Sprint("n", i), func(context.Context) (int, error) { return i, nil })
			assert.NoError(h, err)
		}
		_, err := step.AtMostOnce(ctx, "charge", h.charge, h.charge)
		assert.ErrorIs(h, err, step.ErrMisuse)
		assert.ErrorContains(h, err, "too many steps")
	})
	require.Zero(t, h.effect.Load())
}

// Whatever has begun can be asked about.
func TestManyMarks(t *testing.T) {
	t.Parallel()
	store := newMemory()
	h := newHarness(t, store)
	h.attempt(func(ctx context.Context) {
		var all sync.WaitGroup
		for i := range step.MaxSteps {
			all.Go(func() { _, _ = step.AtMostOnce(ctx, fmt.Sprint("n", i), h.down, nil) })
		}
		all.Wait()
	})
	entry, err := store.Inspect(t.Context(), testservice.NumberedKey(1))
	require.NoError(t, err)
	require.LessOrEqual(t, len(entry.Steps), step.MaxSteps/2)
	h.attempt(func(ctx context.Context) { // each one that was begun may be asked about
		for _, s := range entry.Steps {
			_, err := step.AtMostOnce(ctx, s.Name[:len(s.Name)-1], h.down, h.charge)
			assert.NoError(h, err)
		}
	})
}

// An error of fn is one of fn, whatever it wraps.
func TestErrorLikeThatOfAStep(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	h.attempt(func(ctx context.Context) {
		inner := fmt.Errorf("another operation: %w", step.ErrResult)
		_, err := step.Do(ctx, "charge", func(context.Context) (int, error) { return 0, inner })
		assert.Equal(h, inner, err)
		_, err = step.Do(ctx, "charge", func(context.Context) (int, error) { return 1, nil })
		assert.NoError(h, err)
	})
}

// hanging is a Keeper that does not answer.
type hanging struct{}

func (hanging) CheckLease() error { return nil }

func (hanging) Checkpoint(ctx context.Context, _ string, _ []byte) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (hanging) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// fixed is an attempt.
type fixed struct{ steps *checkpoint.Steps }

func (f fixed) Steps() *checkpoint.Steps { return f.steps }

// Steps that run together wait together for a store that does not answer, and not one after the other.
func TestHangingStore(t *testing.T) {
	t.Parallel()
	steps := &checkpoint.Steps{Keeper: hanging{}, HasClaim: true, MustLoad: true, Timeout: 300 * time.Millisecond}
	ctx := context.WithValue(t.Context(), checkpoint.Key{}, fixed{steps})
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

// Once an answer that is too large has completed the operation, no step begins.
func TestStepBehindALargeAnswer(t *testing.T) {
	t.Parallel()
	h := newHarness(t, newMemory())
	service := testservice.Setup{Store: newMemory(), Opts: idempotency.Options{MaxResponse: 100}}.Serve(t,
		func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte(strings.Repeat("x", 1000)))
			_, err := step.Do(r.Context(), "charge", h.charge)
			assert.ErrorIs(t, err, step.ErrMisuse)
		})
	require.Equal(t, 200, service.Post("k", "body").Status)
	require.Zero(t, h.effect.Load())
}
