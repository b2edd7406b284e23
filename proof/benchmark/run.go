package benchmark

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// run sends requestCount requests to a subject. Before the measured requests, run brings the subject to a state in which
// all requests cost the same.
type run struct {
	scenario       Scenario
	requestCount   int
	backends       *Backends
	store          Store
	replayField    string // header field that marks replays; empty if replays have no mark
	app            *App
	target         *Target
	workers        []Worker
	keys           []string          // used by the requests in turns
	latencies      []time.Duration   // of each request, if the scenario is served
	firstAnswers   map[string]Answer // the first answer to each replayed key
	endHeldRequest func() error      // ends the request in progress; nil without such a request
}

// openRun opens the subject. The caller closes the run, even after an error.
func openRun(b *Backends, subject *Subject, s Scenario, n int) (r *run, err error) {
	r = &run{scenario: s, requestCount: n, backends: b, store: subject.Store, replayField: subject.Mark, app: NewApp(s.Work)}
	r.target, err = subject.Open(b, r.app)
	if err == nil && s.Served {
		err = r.target.serveOverHTTP()
	}
	return r, err
}

func (r *run) close() error {
	var err error
	if r.endHeldRequest != nil {
		err = r.endHeldRequest()
	}
	for _, w := range r.workers {
		w.Close()
	}
	if r.target != nil && r.target.Close != nil {
		err = errors.Join(err, r.target.Close())
	}
	if r.store == InRedis { // because large answers would fill the memory
		err = errors.Join(err, r.backends.Redis.FlushAll(context.Background()).Err())
	}
	return err
}

// prepareRequests makes the workers and the records for the path, and sends the requests of warmUp.
func (r *run) prepareRequests() (err error) {
	for range r.scenario.Workers {
		r.workers = append(r.workers, r.target.Worker(Call{r.scenario.Path, r.scenario.Work}))
	}
	switch r.scenario.Path {
	case Replay, Reuse:
		err = r.recordFirstAnswers()
	case InProgress:
		err = r.startHeldRequest()
	}
	if err != nil {
		return err
	}
	runtime.GC() // because garbage of earlier requests must not slow the measured requests
	return r.warmUp()
}

// fillMemoryStore gives the maps and heaps of a store in memory their final size. The cost of growth depends on the
// moment of the growth, and a store whose records expire as fast as new records arrive does not grow.
func (r *run) fillMemoryStore() error {
	if r.store != InMemory {
		return nil
	}
	const shards, recordsPerShard = 64, 340 // between 256, where slices grow, and 448, where the tables of maps grow
	r.app.Work = Work{}
	defer func() { r.app.Work = r.scenario.Work }()
	return r.executeKeys(Work{Request: 1}, NewKeys(shards*recordsPerShard))
}

// executeKeys sends a request with each key.
func (r *run) executeKeys(work Work, keys []string) error {
	w := r.target.Worker(Call{First, work})
	defer w.Close()
	return forEachKey(keys, func(key string) error {
		_, _, err := w.Do(key)
		return err
	})
}

// recordFirstAnswers executes requests with eight keys, and keeps the answers in firstAnswers.
func (r *run) recordFirstAnswers() (err error) {
	r.keys, r.firstAnswers = NewKeys(8), make(map[string]Answer)
	w := r.target.Worker(Call{First, r.scenario.Work})
	defer w.Close()
	return forEachKey(r.keys, func(key string) error {
		r.firstAnswers[key], err = w.Fetch(key)
		return err
	})
}

// startHeldRequest starts a request, and keeps the request in progress until the run is closed.
func (r *run) startHeldRequest() error {
	r.keys = NewKeys(1)
	entered, leave, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	r.app.During = func() {
		close(entered)
		<-leave
	}
	go func() { ended <- r.executeKeys(r.scenario.Work, r.keys) }()
	select {
	case <-entered:
		r.endHeldRequest = func() error {
			close(leave)
			return <-ended
		}
		return nil
	case err := <-ended:
		return errors.Join(errors.New("the handler was not called"), err)
	}
}

// warmUp sends requests to open connections, prepare statements and fill pools. Afterwards the run has keys for the
// measured requests.
func (r *run) warmUp() error {
	n := r.requestCount
	r.latencies = make([]time.Duration, max(n, 4*len(r.workers)))
	r.requestCount = max(min(n, 256), 4*len(r.workers))
	err := errors.Join(r.renewKeys(), r.sendRequests())
	r.requestCount = n
	r.app.executionCount.Store(0)
	return errors.Join(err, r.renewKeys())
}

// renewKeys makes a new key for each request, unless the requests of the path share keys.
func (r *run) renewKeys() error {
	switch r.scenario.Path {
	case Replay, Reuse, InProgress:
		return nil
	case Release:
		r.app.Status = http.StatusServiceUnavailable
	}
	r.keys = NewKeys(r.requestCount)
	if r.scenario.Path != Again {
		return nil
	}
	r.app.Status = http.StatusServiceUnavailable
	err := r.executeKeys(r.scenario.Work, r.keys)
	r.app.Status = http.StatusCreated
	r.app.executionCount.Store(0)
	return err
}

// sendRequests sends all requests, with all workers concurrently.
func (r *run) sendRequests() error {
	var next atomic.Int64
	work := func(w Worker) error {
		for i := int(next.Add(1) - 1); i < r.requestCount; i = int(next.Add(1) - 1) {
			started := time.Now()
			if err := r.sendRequest(w, r.keys[i%len(r.keys)]); err != nil {
				return err
			}
			if r.scenario.Served {
				r.latencies[i] = time.Since(started)
			}
		}
		return nil
	}
	if len(r.workers) == 1 {
		return work(r.workers[0])
	}
	var wg sync.WaitGroup
	errs := make([]error, len(r.workers))
	for i, w := range r.workers {
		wg.Go(func() { errs[i] = work(w) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// sendRequest sends a request, and checks status and length of the answer.
func (r *run) sendRequest(w Worker, key string) error {
	status, length, err := w.Do(key)
	if err != nil {
		return err
	}
	want, wantLength := r.app.Status, r.scenario.Work.Response
	if r.scenario.Path == Reuse || r.scenario.Path == InProgress {
		want, wantLength = http.StatusConflict, length
	}
	if status != want || length != wantLength {
		return fmt.Errorf("status %d with %d bytes in %q", status, length, r.scenario)
	}
	return nil
}

// checkOutcome compares the number of executions with the number in the contract, and replays with the first answers.
func (r *run) checkOutcome() error {
	want := r.requestCount
	switch r.scenario.Path {
	case Replay, Reuse, InProgress:
		want = 0
	}
	if got := r.app.executionCount.Load(); got != int64(want) {
		return fmt.Errorf("%d executions, not %d in %q", got, want, r.scenario)
	}
	if r.scenario.Path != Replay {
		return nil
	}
	return forEachKey(r.keys, func(key string) error {
		again, err := r.workers[0].Fetch(key)
		first := r.firstAnswers[key]
		return errors.Join(err, r.checkMark(first, false), r.checkMark(again, true), r.compareAnswers(first, again))
	})
}

// checkMark returns an error if the subject marks replays, and the mark of a differs from isReplay.
func (r *run) checkMark(a Answer, isReplay bool) error {
	if got := a.Header.Get(r.replayField); r.replayField != "" && (got == "true") != isReplay {
		return fmt.Errorf("%s is %q in %q", r.replayField, got, r.scenario)
	}
	return nil
}

// compareAnswers compares two answers, except the mark of a replay and the Date field.
func (r *run) compareAnswers(first, again Answer) error {
	for _, a := range []Answer{first, again} {
		delete(a.Header, r.replayField)
		delete(a.Header, "Date")
	}
	switch {
	case first.Status != again.Status:
		return fmt.Errorf("replayed with status %d after %d", again.Status, first.Status)
	case !maps.EqualFunc(first.Header, again.Header, slices.Equal[[]string]):
		return fmt.Errorf("replayed with %v after %v", again.Header, first.Header)
	case !bytes.Equal(first.Body, again.Body):
		return errors.New("replayed with another body")
	}
	return nil
}

// forEachKey calls step for every key, until step returns an error.
func forEachKey(keys []string, step func(string) error) error {
	for _, key := range keys {
		if err := step(key); err != nil {
			return err
		}
	}
	return nil
}
