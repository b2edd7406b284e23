package benchmark

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Scenario is what a batch does.
type Scenario struct {
	Path    Path
	Work    Work
	Workers int
	Wire    bool // over real HTTP on loopback, rather than by calls in this process
	Batch   int  // requests; Matrix.Compare chooses it
}

func (s Scenario) String() string {
	where := "in process"
	if s.Wire {
		where = "over HTTP"
	}
	workers := "1 worker"
	if s.Workers > 1 {
		workers = fmt.Sprintf("%d workers", s.Workers)
	}
	return fmt.Sprintf("%s, %s, %s, %s", s.Path, s.Work, workers, where)
}

// Contender returns the subject as a contender in the scenario.
func (s Scenario) Contender(b *Backends, subject Subject) Contender {
	return Contender{Name: subject.Name, Batch: func() (time.Duration, error) {
		r := &run{scenario: s, subject: subject, app: NewApp(s.Work)}
		defer r.close(b)
		if err := r.open(b); err != nil {
			return 0, err
		}
		return r.batch()
	}}
}

// Profile writes a profile of the processor while the subject runs a batch.
func (s Scenario) Profile(b *Backends, subject Subject, w io.Writer) error {
	r := &run{scenario: s, subject: subject, app: NewApp(s.Work)}
	defer r.close(b)
	if err := r.open(b); err != nil {
		return err
	}
	if err := r.warm(); err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	defer pprof.StopCPUProfile()
	_, err := r.requests()
	return err
}

// run is one batch.
type run struct {
	scenario Scenario
	subject  Subject
	app      *App
	target   *Target
	workers  []Worker
	keys     []string
	first    map[string]Answer // to the keys that are replayed
	stop     func()
}

func (r *run) open(b *Backends) (err error) {
	if r.target, err = r.subject.Open(b, r.app); err != nil {
		return err
	}
	dial := func(c Call) (Worker, error) { return r.target.Worker(c), nil }
	if r.scenario.Wire {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		r.stop = r.target.Serve(listener)
		dial = func(c Call) (Worker, error) { return dialWire(listener.Addr().String(), c) }
	}
	return r.prepare(dial)
}

// prepare makes the workers and their keys, and executes what is to be replayed.
func (r *run) prepare(dial func(Call) (Worker, error)) error {
	s := r.scenario
	for range s.Workers {
		w, err := dial(Call{s.Path, s.Work})
		if err != nil {
			return err
		}
		r.workers = append(r.workers, w)
	}
	switch {
	case s.Path == Replay:
		return r.prime(dial)
	case s.Path == Duplicates:
		r.keys = NewKeys(s.Batch / s.Workers)
	case !s.Path.guarded():
		r.keys = NewKeys(1)
	default:
		r.keys = NewKeys(s.Batch)
	}
	return nil
}

// prime executes requests with a few keys, and keeps their answers.
func (r *run) prime(dial func(Call) (Worker, error)) error {
	r.keys, r.first = NewKeys(64), make(map[string]Answer)
	if !r.scenario.Work.small() {
		r.keys = r.keys[:4]
	}
	w, err := dial(Call{First, r.scenario.Work})
	if err != nil {
		return err
	}
	defer w.Close()
	for _, key := range r.keys {
		if r.first[key], err = w.Fetch(key); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) close(b *Backends) {
	for _, w := range r.workers {
		w.Close()
	}
	if r.subject.Store == InRedis {
		b.Redis.FlushAll(context.Background()) // large answers would fill the memory
	}
	if r.stop != nil {
		r.stop()
	}
	if r.target != nil {
		r.target.close()
	}
}

// batch runs the batch, and checks that it was what it should have been.
func (r *run) batch() (time.Duration, error) {
	if err := r.warm(); err != nil {
		return 0, err
	}
	elapsed, err := r.requests()
	return elapsed / time.Duration(r.scenario.Batch), errors.Join(err, r.check())
}

// warm lets every worker send a request that does not count: it fills pools of buffers, as those of a server are.
func (r *run) warm() error {
	runtime.GC() // nobody pays for the garbage of the batch before
	keys := r.keys
	if r.scenario.Path != Replay {
		keys = NewKeys(len(r.workers))
	}
	_, err := r.together(func(i int, w Worker) error { return r.send(w, keys[i%len(keys)]) })
	r.app.executions.Store(0)
	return err
}

// requests sends all requests, and returns how long that takes.
func (r *run) requests() (time.Duration, error) {
	var next atomic.Int64
	return r.together(func(_ int, w Worker) error { return r.work(w, &next) })
}

// together calls step for all workers at once, and returns how long that takes.
func (r *run) together(step func(i int, w Worker) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make([]error, len(r.workers))
	begin := make(chan struct{})
	for i, w := range r.workers {
		wg.Go(func() {
			<-begin
			errs[i] = step(i, w)
		})
	}
	started := time.Now()
	close(begin)
	wg.Wait()
	return time.Since(started), errors.Join(errs...)
}

// work sends the requests of one worker.
func (r *run) work(w Worker, next *atomic.Int64) error {
	if r.scenario.Path == Duplicates {
		for _, key := range r.keys {
			if err := r.send(w, key); err != nil {
				return err
			}
		}
		return nil
	}
	for {
		i := int(next.Add(1) - 1)
		if i >= r.scenario.Batch {
			return nil
		}
		if err := r.send(w, r.keys[i%len(r.keys)]); err != nil {
			return err
		}
	}
}

func (r *run) send(w Worker, key string) error {
	if err := w.Do(key); err != nil {
		return err
	}
	status, length := w.Answer()
	if status == http.StatusConflict && r.scenario.Path == Duplicates {
		return nil
	}
	if status != http.StatusCreated || length != r.scenario.Work.Response {
		return fmt.Errorf("status %d with %d bytes in %q", status, length, r.scenario)
	}
	return nil
}

// check compares the number of executions with what the subject promises, and a replay with the first answer.
func (r *run) check() error {
	if r.subject.Role == Raw {
		return nil
	}
	want := len(r.keys)
	switch {
	case r.subject.Role == Bare, !r.scenario.Path.guarded():
		want = r.scenario.Batch
	case r.scenario.Path == Replay:
		want = 0
	}
	if got := r.app.executions.Load(); got != int64(want) {
		return fmt.Errorf("%d executions, not %d in %q", got, want, r.scenario)
	}
	if r.subject.Role == Bare || r.scenario.Path != Replay {
		return nil
	}
	for _, key := range r.keys[:2] {
		again, err := r.workers[0].Fetch(key)
		if err == nil {
			err = sameAnswer(r.first[key], again)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sameAnswer compares two answers but for the fields that mark a replay or a moment.
func sameAnswer(first, again Answer) error {
	for _, a := range []Answer{first, again} {
		for _, name := range []string{"Idempotent-Replayed", "Date"} {
			delete(a.Header, name)
		}
	}
	switch {
	case first.Status != again.Status:
		return fmt.Errorf("replayed with status %d after %d", again.Status, first.Status)
	case !maps.EqualFunc(first.Header, again.Header, slices.Equal[[]string]):
		return fmt.Errorf("replayed with %v after %v", again.Header, first.Header)
	case !bytes.Equal(first.Body, again.Body):
		return fmt.Errorf("replayed with another body")
	}
	return nil
}
