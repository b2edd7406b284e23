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

// run is a number of requests to a subject, which has been brought to the state in which each of them costs the same.
type run struct {
	scenario Scenario
	n        int
	backends *Backends
	store    Store
	mark     string // of replays
	app      *App
	target   *Target
	workers  []Worker
	keys     []string          // which the requests use in turns
	latency  []time.Duration   // of each request, if the scenario is served
	first    map[string]Answer // to keys that are replayed
	held     func() error      // lets the request end that is in progress, if one is
}

// open sets the subject up. The caller closes the run, even if there is an error.
func open(b *Backends, subject *Subject, s Scenario, n int) (r *run, err error) {
	r = &run{scenario: s, n: n, backends: b, store: subject.Store, mark: subject.Mark, app: NewApp(s.Work)}
	r.target, err = subject.Open(b, r.app)
	if err == nil && s.Served {
		err = r.target.serve()
	}
	return r, err
}

func (r *run) close() error {
	var err error
	if r.held != nil {
		err = r.held()
	}
	for _, w := range r.workers {
		w.Close()
	}
	if r.target != nil && r.target.Close != nil {
		err = errors.Join(err, r.target.Close())
	}
	if r.store == InRedis { // large answers would fill the memory
		err = errors.Join(err, r.backends.Redis.FlushAll(context.Background()).Err())
	}
	return err
}

// prepare makes the workers, and what is to be there before the requests that count.
func (r *run) prepare() (err error) {
	for range r.scenario.Workers {
		r.workers = append(r.workers, r.target.Worker(Call{r.scenario.Path, r.scenario.Work}))
	}
	switch r.scenario.Path {
	case Replay, Reuse:
		err = r.prime()
	case InProgress:
		err = r.begin()
	}
	if err != nil {
		return err
	}
	runtime.GC() // nobody pays for the garbage of others
	return r.warm()
}

// fill gives the maps and heaps of a store in memory the size that they will have: what their growth costs depends on
// when it happens, and in a store from which as much expires as comes in it does not happen.
func (r *run) fill() error {
	if r.store != InMemory {
		return nil
	}
	const shards, each = 64, 340 // in each shard, between 256, where slices grow, and 448, where the tables of maps do
	r.app.Work = Work{}
	defer func() { r.app.Work = r.scenario.Work }()
	return r.execute(Work{Request: 1}, NewKeys(shards*each))
}

// execute sends requests with those keys.
func (r *run) execute(work Work, keys []string) error {
	w := r.target.Worker(Call{First, work})
	defer w.Close()
	return each(keys, func(key string) error {
		_, _, err := w.Do(key)
		return err
	})
}

// prime executes requests with a few keys, and keeps their answers.
func (r *run) prime() (err error) {
	r.keys, r.first = NewKeys(8), make(map[string]Answer)
	w := r.target.Worker(Call{First, r.scenario.Work})
	defer w.Close()
	return each(r.keys, func(key string) error {
		r.first[key], err = w.Fetch(key)
		return err
	})
}

// begin starts a request and keeps it in progress until the run is closed.
func (r *run) begin() error {
	r.keys = NewKeys(1)
	entered, leave, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	r.app.During = func() {
		close(entered)
		<-leave
	}
	go func() { ended <- r.execute(r.scenario.Work, r.keys) }()
	select {
	case <-entered:
		r.held = func() error {
			close(leave)
			return <-ended
		}
		return nil
	case err := <-ended:
		return errors.Join(errors.New("the handler was not called"), err)
	}
}

// warm opens connections, prepares statements and fills pools. It leaves keys for the requests that count.
func (r *run) warm() error {
	n := r.n
	r.latency = make([]time.Duration, max(n, 4*len(r.workers)))
	r.n = max(min(n, 256), 4*len(r.workers))
	err := errors.Join(r.renew(), r.requests())
	r.n = n
	r.app.executions.Store(0)
	return errors.Join(err, r.renew())
}

// renew makes keys for all requests if each needs another one.
func (r *run) renew() error {
	switch r.scenario.Path {
	case Replay, Reuse, InProgress:
		return nil
	case Release:
		r.app.Status = http.StatusServiceUnavailable
	}
	r.keys = NewKeys(r.n)
	if r.scenario.Path != Again {
		return nil
	}
	r.app.Status = http.StatusServiceUnavailable
	err := r.execute(r.scenario.Work, r.keys)
	r.app.Status = http.StatusCreated
	r.app.executions.Store(0)
	return err
}

// requests sends all requests.
func (r *run) requests() error {
	var next atomic.Int64
	work := func(w Worker) error {
		for i := int(next.Add(1) - 1); i < r.n; i = int(next.Add(1) - 1) {
			started := time.Now()
			if err := r.send(w, r.keys[i%len(r.keys)]); err != nil {
				return err
			}
			if r.scenario.Served {
				r.latency[i] = time.Since(started)
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

// send sends a request, and checks its answer.
func (r *run) send(w Worker, key string) error {
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

// check compares the number of executions with what the contract says, and replays with the first answers.
func (r *run) check() error {
	want := r.n
	switch r.scenario.Path {
	case Replay, Reuse, InProgress:
		want = 0
	}
	if got := r.app.executions.Load(); got != int64(want) {
		return fmt.Errorf("%d executions, not %d in %q", got, want, r.scenario)
	}
	if r.scenario.Path != Replay {
		return nil
	}
	return each(r.keys, func(key string) error {
		again, err := r.workers[0].Fetch(key)
		return errors.Join(err, r.marked(r.first[key], false), r.marked(again, true), r.sameAnswer(r.first[key], again))
	})
}

// marked returns an error unless an answer says whether it is a replay, if the subject's answers do.
func (r *run) marked(a Answer, replay bool) error {
	if got := a.Header.Get(r.mark); r.mark != "" && (got == "true") != replay {
		return fmt.Errorf("%s is %q in %q", r.mark, got, r.scenario)
	}
	return nil
}

// sameAnswer compares two answers but for the fields that mark a replay or a moment.
func (r *run) sameAnswer(first, again Answer) error {
	for _, a := range []Answer{first, again} {
		delete(a.Header, r.mark)
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

// each calls step for every key.
func each(keys []string, step func(string) error) error {
	for _, key := range keys {
		if err := step(key); err != nil {
			return err
		}
	}
	return nil
}
