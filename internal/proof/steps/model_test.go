package steps_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/proof/effort"
	"github.com/idempotency-go/idempotency/step"
)

// Attempts at an operation of random steps die at random points, or lose a reply there: before or after each call of the
// store, and before or after each effect. What every step does and returns is what a model says, which is told of what has
// reached the store.
func TestStepsAgreeWithAModel(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(t *testing.T) string{"memory": func(*testing.T) string { return "" }}
	for kind, place := range places {
		kinds[kind] = place
	}
	for kind, newPlace := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			store, err := openAny(kind, newPlace(t))
			require.NoError(t, err)
			seeds := make(chan uint64)
			var walkers sync.WaitGroup
			var mu sync.Mutex
			var points, deaths int
			var faults []error
			for range 8 {
				walkers.Go(func() {
					for seed := range seeds {
						w := newWalk(store, seed)
						err := w.run(t.Context())
						mu.Lock()
						points, deaths = points+w.points, deaths+w.deaths
						if err != nil {
							faults = append(faults, fmt.Errorf("seed %d: %w", seed, err))
						}
						mu.Unlock()
					}
				})
			}
			operations := effort.Of(5000)
			for range operations {
				seeds <- rand.Uint64()
			}
			close(seeds)
			walkers.Wait()
			require.NoError(t, errors.Join(faults[:min(3, len(faults))]...), "of %d faults", len(faults))
			effort.Count(t, "operations", operations)
			effort.Count(t, "deaths at points", deaths)
			effort.Count(t, "points passed", points)
		})
	}
}

func openAny(kind, place string) (idempotency.Store, error) {
	if kind == "memory" {
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{}), nil
	}
	return open(kind, place)
}

// walk is one operation, attempted until it is completed. One goroutine uses it.
type walk struct {
	store  idempotency.Store
	random *rand.Rand
	key    idempotency.Key
	runner *idempotency.Runner

	die    int  // at this point of the attempt
	passed int  // points of the attempt
	dead   bool // the process of the attempt
	last   idempotency.Claim

	points, deaths int
	model          map[string]string // what is stored, marks included
	calls          map[string]int    // of the steps
	fault          error
}

func newWalk(store idempotency.Store, seed uint64) *walk {
	w := &walk{
		store: store, random: rand.New(rand.NewPCG(seed, 1)), key: idempotency.Key{User: "walker", ID: fmt.Sprint(seed)},
		model: make(map[string]string), calls: make(map[string]int),
	}
	w.runner, _ = idempotency.NewRunner(w, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler), TTL: time.Hour})
	return w
}

// Unwrap says what kind of store it is.
func (w *walk) Unwrap() idempotency.Store { return w.store }

var (
	errDeath = errors.New("the process has died")
	errReply = errors.New("the reply is lost")
)

// run attempts the operation until it is completed.
func (w *walk) run(ctx context.Context) error {
	const most = 50
	for range most {
		w.die, w.passed, w.dead = w.random.IntN(25), 0, false
		before := w.last
		done := w.attempt(ctx)
		switch {
		case w.fault != nil:
			return w.fault
		case done:
			return nil
		case w.last != nil:
			_ = w.last.Release(ctx, time.Hour) // as a lease lapses, or a transaction is rolled back
		}
		if before != nil && before != w.last {
			_, err := before.(idempotency.Checkpointer).Checkpoint(ctx, "reserve", []byte(`"zombie"`))
			if !errors.Is(err, idempotency.ErrClaimLost) {
				return fmt.Errorf("an owner that was overtaken got %v", err)
			}
		}
	}
	return errors.New("it does not complete")
}

// attempt reports whether the operation is completed.
func (w *walk) attempt(ctx context.Context) (done bool) {
	defer func() {
		if p := recover(); p != nil && p != errDeath {
			panic(p)
		}
	}()
	_, _, err := w.runner.Do(ctx, w.key, nil, func(ctx context.Context) (idempotency.Response, error) {
		for _, name := range []string{"reserve", "charge", "ship"} {
			if err := w.step(ctx, name, w.random.IntN(2) == 0); err != nil {
				return idempotency.Response{}, err
			}
		}
		return idempotency.Response{Status: 200}, nil
	})
	return err == nil && !w.dead
}

// point is where a process may die, or a reply be lost.
func (w *walk) point() error {
	if w.dead {
		return errDeath
	}
	w.points++
	w.passed++
	switch {
	case w.passed == w.die:
		w.dead = true
		w.deaths++
		panic(errDeath)
	case w.random.IntN(20) == 0:
		return errReply
	}
	return nil
}

// step runs one step, and compares what it does with the model. A step that must be done at most once may be found begun.
func (w *walk) step(ctx context.Context, name string, once bool) error {
	stored, known := w.model[name]
	_, marked := w.model[name+"?"]
	if known && w.random.IntN(4) == 0 {
		first, err := w.last.(idempotency.Checkpointer).Checkpoint(ctx, name, []byte(`"second"`))
		if err == nil && string(first) != stored {
			w.fault = fmt.Errorf("a second writer of %s got %q, and %q was stored", name, first, stored)
		}
	}
	ran, asked := false, false
	fn := func(context.Context) (string, error) {
		ran = true
		if err := w.point(); err != nil {
			return "", err
		}
		w.calls[name]++
		result := fmt.Sprint(name, w.calls[name])
		return result, w.point()
	}
	var got string
	var err error
	if once {
		got, err = step.AtMostOnce(ctx, name, fn, func(context.Context) (string, error) {
			asked = true
			return "asked-" + name, w.point()
		})
	} else {
		got, err = step.Do(ctx, name, fn)
	}
	expect := func(ok bool, format string, args ...any) {
		if !ok && w.fault == nil {
			w.fault = fmt.Errorf("step %s, once %v, known %q: "+format, append([]any{name, once, stored}, args...)...)
		}
	}
	expect(!known || !ran && !asked, "it was done again")
	expect(!(once && marked) || !ran, "it was begun, and done again")
	expect(!asked || marked, "nobody had begun it")
	if err != nil {
		return err
	}
	expect(`"`+got+`"` == w.model[name], "it returned %q, and %s is stored", got, w.model[name])
	return nil
}

// Begin implements [idempotency.Store].
func (w *walk) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if err := w.point(); err != nil {
		return idempotency.Record{}, nil, err
	}
	record, claim, err := w.store.Begin(ctx, key, request)
	if claim == nil {
		return record, claim, err
	}
	w.last = claim
	if lost := w.point(); lost != nil {
		_ = claim.Release(ctx, time.Hour)
		return idempotency.Record{}, nil, lost
	}
	return record, walkClaim{claim.(idempotency.Checkpointer), w}, err
}

type walkClaim struct {
	idempotency.Checkpointer
	walk *walk
}

func (c walkClaim) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	if err := c.walk.point(); err != nil {
		return nil, err
	}
	stored, err := c.Checkpointer.Checkpoint(ctx, name, data)
	if err != nil {
		return nil, err
	}
	first, known := c.walk.model[name]
	if known && first != string(stored) && c.walk.fault == nil {
		c.walk.fault = fmt.Errorf("of %s, %q was stored, and %q is", name, first, stored)
	}
	c.walk.model[name] = string(stored)
	return stored, c.walk.point()
}

func (c walkClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if err := c.walk.point(); err != nil {
		return nil, err
	}
	found, err := c.Checkpointer.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	for name, data := range c.walk.model {
		if string(found[name]) != data && c.walk.fault == nil {
			c.walk.fault = fmt.Errorf("of %s, %q was stored, and %q is found", name, data, found[name])
		}
	}
	if len(found) != len(c.walk.model) && c.walk.fault == nil {
		c.walk.fault = fmt.Errorf("%d steps are stored, and %d found", len(c.walk.model), len(found))
	}
	return found, c.walk.point()
}

func (c walkClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if err := c.walk.point(); err != nil {
		return err
	}
	if err := c.Checkpointer.Complete(ctx, resp, ttl); err != nil {
		return err
	}
	return c.walk.point()
}

func (c walkClaim) Release(ctx context.Context, ttl time.Duration) error {
	if c.walk.dead {
		return errDeath
	}
	return c.Checkpointer.Release(ctx, ttl)
}
