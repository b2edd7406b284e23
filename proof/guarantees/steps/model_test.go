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

// Attempts at an operation of random steps die or lose a reply at random points, which are before and after each call of the
// store, and before and after each effect. A model learns the data that the store has stored, and the test compares each step
// with the model. The row of a step in a transaction exists once if the result of the step names the row, and otherwise does not
// exist.
func TestStepsAgreeWithAModel(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"memory", "memory with rows", "redis", "postgres", "mysql", "sqlite"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			store, database := openStoreAndDatabase(t, kind)
			defer database.close()
			operations := effort.Of(5000)
			done := runWalks(t.Context(), store, database, operations)
			require.NoError(t, errors.Join(done.faults[:min(3, len(done.faults))]...), "of %d faults", len(done.faults))
			effort.Count(t, "operations", operations)
			effort.Count(t, "deaths at points", done.deathCount)
			effort.Count(t, "points passed", done.passedPoints)
		})
	}
}

// The model notices each store that breaks a rule of steps in a transaction.
func TestModelFindsFaults(t *testing.T) {
	t.Parallel()
	for _, bug := range []string{
		"error commits", "panic commits", "rows are committed at once", "rows are committed alone", "rows are lost",
		"result is stored first", "not fenced",
	} {
		t.Run(bug, func(t *testing.T) {
			t.Parallel()
			rows := testservice.NewRows()
			done := runWalks(t.Context(), testservice.NewRowStore(rows, bug), &database{memoryRows: rows}, 500)
			require.NotEmpty(t, done.faults)
		})
	}
}

// walkResult has the counts and the faults of all operations.
type walkResult struct {
	passedPoints, deathCount int
	faults                   []error
}

// runWalks runs random operations, eight at a time.
func runWalks(ctx context.Context, store idempotency.Store, db *database, operations int) (done walkResult) {
	seeds := make(chan uint64)
	var walkers sync.WaitGroup
	var mu sync.Mutex
	for range 8 {
		walkers.Go(func() {
			for seed := range seeds {
				w := newWalk(store, db, seed)
				err := w.runOperation(ctx)
				mu.Lock()
				done.passedPoints, done.deathCount = done.passedPoints+w.passedPoints, done.deathCount+w.deathCount
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

// openStoreAndDatabase opens a store of the given kind, and its database, which is nil if the store has no transactions.
func openStoreAndDatabase(t *testing.T, kind string) (store idempotency.Store, db *database) {
	t.Helper()
	switch kind {
	case "memory":
		return idempotency.NewMemoryStore(idempotency.MemoryOptions{}), nil
	case "memory with rows":
		db = &database{memoryRows: testservice.NewRows()}
		store = testservice.NewRowStore(db.memoryRows, "")
	default:
		place := preparePlace[kind](t)
		var err error
		store, err = openStore(kind, place)
		require.NoError(t, err)
		if openDatabases[kind] == nil {
			return store, nil
		}
		db, err = openDatabases[kind](place)
		require.NoError(t, err)
	}
	require.NoError(t, db.createTable(t.Context()))
	return store, db
}

// walk runs attempts at one operation until the operation is completed. A walk is not safe for concurrent use.
type walk struct {
	store    idempotency.Store
	database *database // nil: no steps in a transaction
	random   *rand.Rand
	key      idempotency.Key
	runner   *idempotency.Runner

	deathIndex int  // the number of the point at which the attempt dies
	pointIndex int  // the number of points that the attempt has passed
	isDead     bool // the process of the attempt has died
	lastClaim  idempotency.Claim

	passedPoints, deathCount int
	storedData               map[string]string // the model: the stored data of each step, including marks of steps that have begun
	callCount                map[string]int    // the calls of each step
	stepByRow                map[string]string // the step of each written row; at most one row of a step may be committed
	firstFault               error
}

func newWalk(store idempotency.Store, db *database, seed uint64) *walk {
	w := &walk{
		store: store, database: db, random: rand.New(rand.NewPCG(seed, 1)),
		key:        idempotency.Key{User: "walker", ID: fmt.Sprint(seed)},
		storedData: make(map[string]string), callCount: make(map[string]int), stepByRow: make(map[string]string),
	}
	w.runner, _ = idempotency.NewRunner(w, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler), TTL: time.Hour})
	return w
}

// Unwrap returns the wrapped store, whose type says what the store can do.
func (w *walk) Unwrap() idempotency.Store { return w.store }

var (
	errDeath     = errors.New("the process has died")
	errReplyLost = errors.New("the reply is lost")
)

// runOperation runs attempts until the operation is completed.
func (w *walk) runOperation(ctx context.Context) error {
	const maxAttempts = 50
	for range maxAttempts {
		w.deathIndex, w.pointIndex, w.isDead = w.random.IntN(25), 0, false
		before := w.lastClaim
		done := w.runAttempt(ctx)
		switch {
		case w.firstFault != nil:
			return w.firstFault
		case done:
			return w.compareRows(ctx)
		case w.lastClaim != nil:
			_ = w.lastClaim.Release(ctx, idempotency.Release{TTL: time.Hour}) // stands for a lease that lapses, or a transaction that is rolled back
		}
		if before != nil && before != w.lastClaim {
			_, err := before.(idempotency.Checkpointer).Checkpoint(ctx, "reserve", []byte(`"zombie"`))
			if !errors.Is(err, idempotency.ErrClaimLost) {
				return fmt.Errorf("an owner that was overtaken got %v", err)
			}
			if err := w.checkLostClaim(ctx, before); err != nil {
				return err
			}
		}
	}
	return errors.New("it does not complete")
}

// checkLostClaim runs a step in a transaction with a lost claim, and returns an error unless the step fails with ErrClaimLost.
func (w *walk) checkLostClaim(ctx context.Context, lost idempotency.Claim) error {
	claim, ok := lost.(idempotency.TxCheckpointer)
	if !ok {
		return nil
	}
	zombie := &idempotency.TxStep{
		Name: "zombie", Var: w.database.newVar(), Timeout: time.Minute, Run: func() ([]byte, error) { return []byte("1"), nil },
	}
	if _, err := claim.CheckpointTx(ctx, zombie); !errors.Is(err, idempotency.ErrClaimLost) {
		return fmt.Errorf("an owner that was overtaken got %v in a transaction", err)
	}
	return nil
}

// compareRows returns an error unless each written row exists once if the result of its step names the row, and otherwise does
// not exist.
func (w *walk) compareRows(ctx context.Context) error {
	for row, name := range w.stepByRow {
		n, err := w.database.countRows(ctx, row)
		if err != nil {
			return err
		}
		want := 0
		if w.storedData[name] == `"`+row+`"` {
			want = 1
		}
		if n != want {
			return fmt.Errorf("there are %d rows %s, and the result of the step is %s", n, row, w.storedData[name])
		}
	}
	return nil
}

// stepKind says how a step runs.
type stepKind int

const (
	plain stepKind = iota
	atMostOnce
	inTransaction // otherwise plain if the store has no transactions
)

// runAttempt runs one attempt, and reports whether the operation is completed.
func (w *walk) runAttempt(ctx context.Context) (done bool) {
	defer func() {
		if p := recover(); p != nil && p != errDeath {
			panic(p)
		}
	}()
	_, _, err := w.runner.Do(ctx, w.key, nil, func(ctx context.Context) (idempotency.Response, error) {
		for _, name := range []string{"reserve", "charge", "ship"} {
			for tries := 0; ; tries++ {
				err := w.runStep(ctx, name, stepKind(w.random.IntN(3)))
				if err == nil {
					break
				}
				if !errors.Is(err, errReplyLost) || tries == 2 || w.random.IntN(2) == 0 {
					return idempotency.Response{}, err
				}
			}
		}
		return idempotency.Response{Status: 200}, nil
	})
	return err == nil && !w.isDead
}

// passPoint passes one point, at which the process may die, or a reply may be lost.
func (w *walk) passPoint() error {
	if w.isDead {
		return errDeath
	}
	w.passedPoints++
	w.pointIndex++
	switch {
	case w.pointIndex == w.deathIndex:
		w.isDead = true
		w.deathCount++
		panic(errDeath)
	case w.random.IntN(20) == 0:
		return errReplyLost
	}
	return nil
}

// runStep runs one step, and compares its calls and its result with the model. A step that runs at most once asks for the
// outcome if an earlier attempt has begun the step.
func (w *walk) runStep(ctx context.Context, name string, kind stepKind) error {
	once := kind == atMostOnce
	stored, known := w.storedData[name]
	_, marked := w.storedData[name+"?"]
	if known && w.random.IntN(4) == 0 {
		first, err := w.lastClaim.(idempotency.Checkpointer).Checkpoint(ctx, name, []byte(`"second"`))
		if err == nil && string(first) != stored {
			w.firstFault = fmt.Errorf("a second writer of %s got %q, and %q was stored", name, first, stored)
		}
	}
	ran, asked := false, false
	fn := func(context.Context) (string, error) {
		ran = true
		if err := w.passPoint(); err != nil {
			return "", err
		}
		w.callCount[name]++
		result := fmt.Sprint(name, w.callCount[name])
		return result, w.passPoint()
	}
	var got string
	var err error
	switch {
	case kind == inTransaction && w.database != nil:
		got, err = w.database.runStep(ctx, name, func(write func(row string) error) (string, error) {
			row := fmt.Sprint(w.key.ID, "-row-", len(w.stepByRow))
			if err := write(row); err != nil {
				return "", err
			}
			w.stepByRow[row] = name
			_, err := fn(ctx)
			return row, err
		})
	case once:
		got, err = step.AtMostOnce(ctx, name, fn, func(context.Context) (string, error) {
			asked = true
			return "asked-" + name, w.passPoint()
		})
	default:
		got, err = step.Do(ctx, name, fn)
	}
	expect := func(ok bool, format string, args ...any) {
		if !ok && w.firstFault == nil {
			w.firstFault = fmt.Errorf("step %s, once %v, known %q: "+format, append([]any{name, once, stored}, args...)...)
		}
	}
	expect(!known || !ran && !asked, "it was done again")
	expect(!(once && marked) || !ran, "it was begun, and done again")
	expect(!asked || marked, "nobody had begun it")
	if err != nil {
		return err
	}
	expect(`"`+got+`"` == w.storedData[name], "it returned %q, and %s is stored", got, w.storedData[name])
	return nil
}

// Begin implements [idempotency.Store].
func (w *walk) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if err := w.passPoint(); err != nil {
		return idempotency.Record{}, nil, err
	}
	record, claim, err := w.store.Begin(ctx, key, request)
	if claim == nil {
		return record, claim, err
	}
	w.lastClaim = claim
	if lost := w.passPoint(); lost != nil {
		_ = claim.Release(ctx, idempotency.Release{TTL: time.Hour})
		return idempotency.Record{}, nil, lost
	}
	return record, walkClaim{claim.(idempotency.Checkpointer), w}, err
}

type walkClaim struct {
	idempotency.Checkpointer
	walk *walk
}

func (c walkClaim) Checkpoint(ctx context.Context, name string, data []byte) ([]byte, error) {
	if err := c.walk.passPoint(); err != nil {
		return nil, err
	}
	stored, err := c.Checkpointer.Checkpoint(ctx, name, data)
	if err != nil {
		return nil, err
	}
	c.walk.learnResult(name, stored)
	return stored, c.walk.passPoint()
}

// CheckpointTx implements [idempotency.TxCheckpointer].
func (c walkClaim) CheckpointTx(ctx context.Context, s *idempotency.TxStep) ([]byte, error) {
	if err := c.walk.passPoint(); err != nil {
		return nil, err
	}
	stored, err := c.Checkpointer.(idempotency.TxCheckpointer).CheckpointTx(ctx, s)
	if err != nil {
		return nil, err
	}
	c.walk.learnResult(s.Name, stored)
	return stored, c.walk.passPoint()
}

// learnResult compares the stored data of a step with the model, and then puts the data into the model.
func (w *walk) learnResult(name string, stored []byte) {
	first, known := w.storedData[name]
	if known && first != string(stored) && w.firstFault == nil {
		w.firstFault = fmt.Errorf("of %s, %q was stored, and %q is", name, first, stored)
	}
	w.storedData[name] = string(stored)
}

func (c walkClaim) Checkpoints(ctx context.Context) (map[string][]byte, error) {
	if err := c.walk.passPoint(); err != nil {
		return nil, err
	}
	found, err := c.Checkpointer.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	for name, data := range c.walk.storedData {
		if string(found[name]) != data && c.walk.firstFault == nil {
			c.walk.firstFault = fmt.Errorf("of %s, %q was stored, and %q is found", name, data, found[name])
		}
	}
	if len(found) != len(c.walk.storedData) && c.walk.firstFault == nil {
		c.walk.firstFault = fmt.Errorf("%d steps are stored, and %d found", len(c.walk.storedData), len(found))
	}
	return found, c.walk.passPoint()
}

func (c walkClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	if err := c.walk.passPoint(); err != nil {
		return err
	}
	if err := c.Checkpointer.Complete(ctx, resp, ttl); err != nil {
		return err
	}
	return c.walk.passPoint()
}

func (c walkClaim) Release(ctx context.Context, end idempotency.Release) error {
	if c.walk.isDead {
		return errDeath
	}
	return c.Checkpointer.Release(ctx, end)
}
