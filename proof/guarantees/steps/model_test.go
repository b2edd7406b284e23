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
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/step"
)

// Attempts at an operation of random steps die at random points, or lose a reply there: before or after each call of the
// store, and before or after each effect. What every step does and returns is what a model says, which is told of what has
// reached the store. Rows of a step in a transaction are there once, and only those of its result.
func TestStepsAgreeWithAModel(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"memory", "memory with rows", "redis", "postgres", "mysql", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			store, database := openAny(t, kind)
			defer database.close()
			operations := effort.Of(5000)
			done := walkAll(t.Context(), store, database, operations)
			require.NoError(t, errors.Join(done.faults[:min(3, len(done.faults))]...), "of %d faults", len(done.faults))
			effort.Count(t, "operations", operations)
			effort.Count(t, "deaths at points", done.deaths)
			effort.Count(t, "points passed", done.points)
		})
	}
}

// The model finds a store that breaks a rule of steps in a transaction.
func TestModelFindsFaults(t *testing.T) {
	t.Parallel()
	for _, bug := range []string{
		"error commits", "panic commits", "rows are committed at once", "rows are committed alone", "rows are lost",
		"result is stored first", "not fenced",
	} {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			rows := testservice.NewRows()
			done := walkAll(t.Context(), testservice.NewRowStore(rows, bug), &database{memory: rows}, 500)
			require.NotEmpty(t, done.faults)
		})
	}
}

// walked is what operations have done.
type walked struct {
	points, deaths int
	faults         []error
}

// walkAll runs random operations, eight at a time.
func walkAll(ctx context.Context, store idempotency.Store, rows *database, operations int) (done walked) {
	seeds := make(chan uint64)
	var walkers sync.WaitGroup
	var mu sync.Mutex
	for range 8 {
		walkers.Go(func() {
			for seed := range seeds {
				w := newWalk(store, rows, seed)
				err := w.run(ctx)
				mu.Lock()
				done.points, done.deaths = done.points+w.points, done.deaths+w.deaths
				if err != nil {
					done.faults = append(done.faults, fmt.Errorf("seed %d: %w", seed, err))
				}
				mu.Unlock()
			}
		})
	}
	for range operations {
		seeds <- rand.Uint64()
	}
	close(seeds)
	walkers.Wait()
	return done
}

// openAny returns a store of a kind, and its database, which is nil if the store has no transactions.
func openAny(t *testing.T, kind string) (store idempotency.Store, rows *database) {
	t.Helper()
	switch kind {
	case "memory":
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{}), nil
	case "memory with rows":
		rows = &database{memory: testservice.NewRows()}
		store = testservice.NewRowStore(rows.memory, "")
	default:
		place := places[kind](t)
		var err error
		store, err = open(kind, place)
		require.NoError(t, err)
		if databases[kind] == nil {
			return store, nil
		}
		rows, err = databases[kind](place)
		require.NoError(t, err)
	}
	require.NoError(t, rows.create(t.Context()))
	return store, rows
}

// walk is one operation, attempted until it is completed. One goroutine uses it.
type walk struct {
	store  idempotency.Store
	rows   *database // nil: there are no steps in a transaction
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
	written        map[string]string // steps by the rows that they have written, of which one may be permanent
	fault          error
}

func newWalk(store idempotency.Store, rows *database, seed uint64) *walk {
	w := &walk{
		store: store, rows: rows, random: rand.New(rand.NewPCG(seed, 1)), key: idempotency.Key{User: "walker", ID: fmt.Sprint(seed)},
		model: make(map[string]string), calls: make(map[string]int), written: make(map[string]string),
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
			return w.compareRows(ctx)
		case w.last != nil:
			_ = w.last.Release(ctx, time.Hour) // as a lease lapses, or a transaction is rolled back
		}
		if before != nil && before != w.last {
			_, err := before.(idempotency.Checkpointer).Checkpoint(ctx, "reserve", []byte(`"zombie"`))
			if !errors.Is(err, idempotency.ErrClaimLost) {
				return fmt.Errorf("an owner that was overtaken got %v", err)
			}
			if err := w.overtaken(ctx, before); err != nil {
				return err
			}
		}
	}
	return errors.New("it does not complete")
}

// overtaken has a claim that is lost run a step in a transaction.
func (w *walk) overtaken(ctx context.Context, lost idempotency.Claim) error {
	claim, ok := lost.(idempotency.TxCheckpointer)
	if !ok {
		return nil
	}
	zombie := &idempotency.TxStep{
		Name: "zombie", Var: w.rows.newVar(), Timeout: time.Minute, Run: func() ([]byte, error) { return []byte("1"), nil },
	}
	if _, err := claim.CheckpointTx(ctx, zombie); !errors.Is(err, idempotency.ErrClaimLost) {
		return fmt.Errorf("an owner that was overtaken got %v in a transaction", err)
	}
	return nil
}

// compareRows returns an error unless the rows that were written are there once if they belong to the result of their step, and
// not at all otherwise.
func (w *walk) compareRows(ctx context.Context) error {
	for row, name := range w.written {
		n, err := w.rows.count(ctx, row)
		if err != nil {
			return err
		}
		want := 0
		if w.model[name] == `"`+row+`"` {
			want = 1
		}
		if n != want {
			return fmt.Errorf("there are %d rows %s, and the result of the step is %s", n, row, w.model[name])
		}
	}
	return nil
}

// kindOf says how a step runs.
type kindOf int

const (
	plain kindOf = iota
	atMostOnce
	inTransaction // if the store has transactions
)

// attempt reports whether the operation is completed.
func (w *walk) attempt(ctx context.Context) (done bool) {
	defer func() {
		if p := recover(); p != nil && p != errDeath {
			panic(p)
		}
	}()
	_, _, err := w.runner.Do(ctx, w.key, nil, func(ctx context.Context) (idempotency.Response, error) {
		for _, name := range []string{"reserve", "charge", "ship"} {
			for tries := 0; ; tries++ {
				err := w.step(ctx, name, kindOf(w.random.IntN(3)))
				if err == nil {
					break
				}
				if !errors.Is(err, errReply) || tries == 2 || w.random.IntN(2) == 0 {
					return idempotency.Response{}, err
				}
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
func (w *walk) step(ctx context.Context, name string, kind kindOf) error {
	once := kind == atMostOnce
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
	switch {
	case kind == inTransaction && w.rows != nil:
		got, err = w.rows.do(ctx, name, func(write func(row string) error) (string, error) {
			row := fmt.Sprint(w.key.ID, "-row-", len(w.written))
			if err := write(row); err != nil {
				return "", err
			}
			w.written[row] = name
			_, err := fn(ctx)
			return row, err
		})
	case once:
		got, err = step.AtMostOnce(ctx, name, fn, func(context.Context) (string, error) {
			asked = true
			return "asked-" + name, w.point()
		})
	default:
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
	c.walk.learn(name, stored)
	return stored, c.walk.point()
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c walkClaim) CheckpointTx(ctx context.Context, s *idempotency.TxStep) ([]byte, error) {
	if err := c.walk.point(); err != nil {
		return nil, err
	}
	stored, err := c.Checkpointer.(idempotency.TxCheckpointer).CheckpointTx(ctx, s)
	if err != nil {
		return nil, err
	}
	c.walk.learn(s.Name, stored)
	return stored, c.walk.point()
}

// learn compares what is stored of a step with the model.
func (w *walk) learn(name string, stored []byte) {
	first, known := w.model[name]
	if known && first != string(stored) && w.fault == nil {
		w.fault = fmt.Errorf("of %s, %q was stored, and %q is", name, first, stored)
	}
	w.model[name] = string(stored)
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
