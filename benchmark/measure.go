package benchmark

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
)

// Exact is what one request costs in figures that the load of the machine has no influence on.
type Exact struct {
	Allocs     int64 // of the whole process: the client of the store is included
	Bytes      int64 // allocated
	Commands   float64
	RoundTrips float64
	WAL        float64 // bytes
}

// Measure counts what a request on the path costs the subject. Nothing else may run in the process. Backends must
// count; they are nil for subjects without a store of their own.
func Measure(b *Backends, subject Subject, path Path, work Work) (Exact, error) {
	m := &measurement{backends: b, store: subject.Store, app: NewApp(work), path: path, n: requests(subject, work)}
	target, err := subject.Open(b, m.app)
	if err != nil {
		return Exact{}, err
	}
	defer target.close()
	m.worker = target.Worker(Call{path, work})
	defer m.worker.Close()
	if err := m.prepare(target); err != nil {
		return Exact{}, fmt.Errorf("%s, %s: %w", subject.Name, path, err)
	}
	exact, err := m.count()
	if err := errors.Join(err, m.end()); err != nil {
		return Exact{}, fmt.Errorf("%s, %s: %w", subject.Name, path, err)
	}
	return exact, nil
}

// requests is how many are counted.
func requests(subject Subject, work Work) int {
	switch {
	case !work.small():
		return 32
	case subject.Store == InMemory:
		return 2048
	default:
		return 256
	}
}

type measurement struct {
	backends *Backends
	store    Store
	app      *App
	path     Path
	n        int
	worker   Worker
	keys     []string
	end      func() error
}

// prepare brings the subject to the state in which every further request costs the same.
func (m *measurement) prepare(target *Target) error {
	first := target.Worker(Call{First, m.app.Work})
	defer first.Close()
	m.end = func() error { return nil }
	if m.path == Release {
		m.app.Status = http.StatusServiceUnavailable
	}
	if err := m.fill(target); err != nil {
		return err
	}
	m.keys = NewKeys(m.n)
	switch m.path {
	case Replay, Reuse:
		m.keys = m.keys[:1]
		if err := first.Do(m.keys[0]); err != nil {
			return err
		}
	case InProgress:
		m.keys = m.keys[:1]
		return m.begin(target)
	}
	return nil
}

// warm opens connections, prepares statements and fills pools.
func (m *measurement) warm() error {
	for _, key := range NewKeys(16) {
		if m.path != First && m.path != Release {
			key = m.keys[0]
		}
		if err := m.worker.Do(key); err != nil {
			return err
		}
	}
	return nil
}

// fill gives the maps and heaps of a store in memory the size that they will have: what their growth costs depends on when it
// happens, and in a store that is in use and expires as much as it takes in it does not happen.
func (m *measurement) fill(target *Target) error {
	if m.store != InMemory {
		return nil
	}
	work := m.app.Work
	m.app.Work = Work{}
	defer func() { m.app.Work = work }()
	w := target.Worker(Call{First, Work{Request: 1}})
	defer w.Close()
	const shards, each = 64, 340 // in each shard, between 256, where slices grow, and 448, where the tables of maps do
	for _, key := range NewKeys(shards * each) {
		if err := w.Do(key); err != nil {
			return err
		}
	}
	return nil
}

// begin keeps the key in progress until the measurement ends.
func (m *measurement) begin(target *Target) error {
	h := &hold{make(chan struct{}), make(chan struct{})}
	m.app.hold = h
	ended := make(chan error, 1)
	go func() {
		w := target.Worker(Call{First, m.app.Work})
		defer w.Close()
		ended <- w.Do(m.keys[0])
	}()
	select {
	case <-h.entered:
	case err := <-ended:
		return errors.Join(errors.New("the handler was not called"), err)
	}
	m.end = func() error {
		close(h.leave)
		return <-ended
	}
	return nil
}

// count sends the requests.
func (m *measurement) count() (exact Exact, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that pools find what was put into them
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	if err := m.warm(); err != nil {
		return exact, err
	}
	if exact, err = m.stored(); err != nil {
		return exact, err
	}
	var before, after runtime.MemStats
	keys := m.keys
	if len(keys) > 1 {
		keys = NewKeys(m.n)
	}
	runtime.ReadMemStats(&before)
	err = m.send(keys)
	runtime.ReadMemStats(&after)
	exact.Allocs = int64(after.Mallocs-before.Mallocs) / int64(m.n)
	exact.Bytes = int64(after.TotalAlloc-before.TotalAlloc) / int64(m.n)
	return exact, err
}

// stored counts what reaches the servers.
func (m *measurement) stored() (exact Exact, err error) {
	if m.store == InMemory {
		return Exact{}, nil
	}
	ctx := context.Background()
	wal, err := m.backends.wal(ctx)
	if err != nil {
		return Exact{}, err
	}
	m.backends.flights.Store(0)
	m.backends.commands.Store(0)
	err = m.send(m.keys)
	exact.RoundTrips = float64(m.backends.flights.Load()) / float64(m.n)
	exact.Commands = float64(m.backends.commands.Load()) / float64(m.n)
	if err != nil {
		return exact, err
	}
	end, err := m.backends.wal(ctx)
	exact.WAL = float64(end-wal) / float64(m.n)
	return exact, err
}

func (m *measurement) send(keys []string) error {
	want := map[Path]int{InProgress: http.StatusConflict, Reuse: http.StatusConflict}[m.path]
	if want == 0 {
		want = m.app.Status
	}
	for i := range m.n {
		if err := m.worker.Do(keys[i%len(keys)]); err != nil {
			return err
		}
		if status, _ := m.worker.Answer(); status != want {
			return fmt.Errorf("status %d, not %d", status, want)
		}
	}
	return nil
}
