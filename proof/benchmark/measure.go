package benchmark

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Exact is the cost of one request in figures that are independent of the load of the machine.
type Exact struct {
	Allocs     int64 // of the whole process, including the client of the store
	Bytes      int64 // allocated
	RoundTrips float64
	WAL        float64 // bytes
}

// Measure counts the cost of a request on the path. The process must be idle otherwise, because Measure counts the
// allocations of the process, and b must be from [OpenCounting].
func Measure(b *Backends, subject *Subject, path Path, work Work) (exact Exact, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // because a pool keeps objects for each processor
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	n := 256
	if !work.isSmall() {
		n = 32
	}
	r, err := openRun(b, subject, Scenario{Path: path, Work: work, Workers: 1}, n)
	if err == nil {
		err = errors.Join(r.fillMemoryStore(), r.prepareRequests())
	}
	if err == nil {
		exact, err = r.countCosts()
	}
	if err = errors.Join(err, r.close()); err != nil {
		return Exact{}, fmt.Errorf("%s: %w", subject.Name, err)
	}
	return exact, nil
}

// countCosts sends the requests, and counts the cost of each request.
func (r *run) countCosts() (exact Exact, err error) {
	wal, err := r.readWAL()
	if err != nil {
		return exact, err
	}
	var before, after runtime.MemStats
	roundTrips := r.countRoundTrips()
	runtime.ReadMemStats(&before)
	err = r.sendRequests()
	runtime.ReadMemStats(&after)
	n := float64(r.requestCount)
	exact.Allocs = int64(after.Mallocs-before.Mallocs) / int64(r.requestCount)
	exact.Bytes = int64(after.TotalAlloc-before.TotalAlloc) / int64(r.requestCount)
	exact.RoundTrips = float64(r.countRoundTrips()-roundTrips) / n
	end, walErr := r.readWAL()
	exact.WAL = float64(end-wal) / n
	return exact, errors.Join(err, walErr, r.checkOutcome())
}

func (r *run) countRoundTrips() int64 {
	return r.backends.roundTrips.Load()
}

// readWAL returns the number of bytes of WAL that the server has written.
func (r *run) readWAL() (n int64, err error) {
	if r.store != InPostgres && r.store != RowsInPostgres {
		return 0, nil
	}
	const query = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	err = r.backends.Postgres.QueryRow(context.Background(), query).Scan(&n)
	return n, err
}
