package compat_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// cardCharge is a River job.
type cardCharge struct {
	Order string `json:"order"`
}

// Kind returns the name of the job.
func (cardCharge) Kind() string { return "charge" }

// chargeWorker charges each order once, however often River works its job.
type chargeWorker struct {
	river.WorkerDefaults[cardCharge]
	runner                  *idempotency.Runner
	works, snoozes, charges atomic.Int32
	resultsToLose           atomic.Int32 // how often River does not learn that a job is done
	answersToLose           atomic.Int32 // how often the outcome of a charge is unknown
}

// Work charges the order of job, unless an earlier attempt has done so.
func (w *chargeWorker) Work(ctx context.Context, job *river.Job[cardCharge]) error {
	w.works.Add(1)
	err := w.chargeOnce(ctx, job)
	if err == nil && w.resultsToLose.Add(-1) >= 0 {
		return errors.New("the process dies before River learns of it")
	}
	if _, isSnoozed := errors.AsType[*river.JobSnoozeError](err); isSnoozed {
		w.snoozes.Add(1)
	}
	return err
}

// chargeOnce returns what River has to do with job.
func (w *chargeWorker) chargeOnce(ctx context.Context, job *river.Job[cardCharge]) error {
	key := idempotency.Key{User: "river", Endpoint: job.Kind, ID: strconv.FormatInt(job.ID, 10)}
	_, _, err := idempotency.DoJSON(ctx, w.runner, key, job.EncodedArgs, w.chargeOrder)
	switch {
	case err == nil, errors.Is(err, idempotency.ErrNotReplayable): // done, now or by an earlier attempt
		return nil
	case errors.Is(err, idempotency.ErrKeyReused), errors.Is(err, idempotency.ErrOutcomeUnknown): // a person has to look
		return river.JobCancel(err)
	case errors.Is(err, idempotency.ErrInProgress):
		return river.JobSnooze(time.Second)
	default:
		return err
	}
}

func (w *chargeWorker) chargeOrder(ctx context.Context) (int32, error) {
	n := w.charges.Add(1)
	if w.answersToLose.Add(-1) >= 0 {
		idempotency.Decide(ctx, idempotency.Unknown)
		return 0, errors.New("the bank does not answer")
	}
	return n, nil
}

// retryAtOnce is the retry policy of the River client.
type retryAtOnce struct{}

func (retryAtOnce) NextRetry(*rivertype.JobRow) time.Time { return time.Now() }

// River works a job again whose end it did not learn, and the job takes effect once. A job that another process has in hand
// waits for the result of that process, and a job whose outcome is unknown is cancelled.
func TestRiverWorksAJobAgain(t *testing.T) {
	t.Parallel()
	pool, _ := startRiver(t)
	runner, err := idempotency.NewRunner(pgxstore.New(pool, pgxstore.Options{}), idempotency.RunnerOptions{
		Abandoned: idempotency.Refuse, Lease: 2 * time.Second, StoreTimeout: 2 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	worker := &chargeWorker{runner: runner}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: slog.New(slog.DiscardHandler), Workers: workers, RetryPolicy: retryAtOnce{}, TestOnly: true,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}},
		FetchPollInterval: 100 * time.Millisecond,
	})
	require.NoError(t, err)
	ended, stopEvents := jobs.Subscribe(river.EventKindJobCompleted, river.EventKindJobCancelled)
	t.Cleanup(stopEvents)
	require.NoError(t, jobs.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, jobs.StopAndCancel(context.Background())) })
	awaitEnd := func() rivertype.JobState {
		t.Helper()
		select {
		case event := <-ended:
			return event.Job.State
		case <-time.After(time.Minute):
			require.FailNow(t, "the job does not end")
			return ""
		}
	}

	worker.resultsToLose.Store(2)
	_, err = jobs.Insert(t.Context(), cardCharge{"lost twice"}, nil)
	require.NoError(t, err)
	require.Equal(t, rivertype.JobStateCompleted, awaitEnd())
	require.EqualValues(t, 3, worker.works.Load())
	require.EqualValues(t, 1, worker.charges.Load())

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	inserted, err := jobs.InsertTx(t.Context(), tx, cardCharge{"in other hands"}, nil)
	require.NoError(t, err)
	began, release, other := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		key := idempotency.Key{User: "river", Endpoint: "charge", ID: strconv.FormatInt(inserted.Job.ID, 10)}
		_, _, err := idempotency.DoJSON(t.Context(), runner, key, inserted.Job.EncodedArgs,
			func(ctx context.Context) (int32, error) {
				close(began)
				<-release
				return worker.chargeOrder(ctx)
			})
		other <- err
	}()
	<-began
	require.NoError(t, tx.Commit(t.Context()))
	require.Eventually(t, func() bool { return worker.snoozes.Load() > 0 }, time.Minute, 10*time.Millisecond)
	close(release)
	require.NoError(t, <-other)
	require.Equal(t, rivertype.JobStateCompleted, awaitEnd())
	require.EqualValues(t, 2, worker.charges.Load())

	worker.answersToLose.Store(1)
	_, err = jobs.Insert(t.Context(), cardCharge{"unknown"}, nil)
	require.NoError(t, err)
	require.Equal(t, rivertype.JobStateCancelled, awaitEnd())
	require.EqualValues(t, 3, worker.charges.Load())
}
