package benchmark

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Exact is what one request costs in figures that the load of the machine has no influence on.
type Exact struct {
	Allocs     int64 // of the whole process: the client of the store is included
	Bytes      int64 // allocated
	RoundTrips float64
	WAL        float64 // bytes
}

// Measure counts what a request on the path costs the subject. Nothing else may run in the process, and b must be from
// [OpenCounting].
func Measure(b *Backends, subject *Subject, path Path, work Work) (exact Exact, err error) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // so that pools find what was put into them
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	n := 256
	if !work.small() {
		n = 32
	}
	r, err := open(b, subject, Scenario{Path: path, Work: work, Workers: 1}, n)
	if err == nil {
		err = errors.Join(r.fill(), r.prepare())
	}
	if err == nil {
		exact, err = r.count()
	}
	if err = errors.Join(err, r.close()); err != nil {
		return Exact{}, fmt.Errorf("%s: %w", subject.Name, err)
	}
	return exact, nil
}

// count sends the requests, and counts what they cost.
func (r *run) count() (exact Exact, err error) {
	wal, err := r.wal()
	if err != nil {
		return exact, err
	}
	var before, after runtime.MemStats
	flights := r.flights()
	runtime.ReadMemStats(&before)
	err = r.requests()
	runtime.ReadMemStats(&after)
	n := float64(r.n)
	exact.Allocs = int64(after.Mallocs-before.Mallocs) / int64(r.n)
	exact.Bytes = int64(after.TotalAlloc-before.TotalAlloc) / int64(r.n)
	exact.RoundTrips = float64(r.flights()-flights) / n
	end, walErr := r.wal()
	exact.WAL = float64(end-wal) / n
	return exact, errors.Join(err, walErr, r.check())
}

func (r *run) flights() int64 {
	return r.backends.flights.Load()
}

// wal returns how many bytes of WAL the server has written.
func (r *run) wal() (n int64, err error) {
	if r.store != InPostgres && r.store != RowsInPostgres {
		return 0, nil
	}
	const query = `SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint`
	err = r.backends.Postgres.QueryRow(context.Background(), query).Scan(&n)
	return n, err
}
