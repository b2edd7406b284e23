package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// size is what was measured of a store with so many records.
type size struct {
	store         bm.Store
	records       int
	bytes         int64 // of a record
	first, replay latency
}

// rate is how many requests a second a store serves to so many workers, each of which has a connection and a key of its own.
type rate struct {
	store         bm.Store
	workers       int
	first, replay float64
}

// latency is how long requests took, one after the other.
type latency struct{ median, p99 time.Duration }

const (
	smallest = 10_000 // records; with fewer, the size of a store depends on how it allocates
	probes   = 1_000  // requests of each latency
	fillers  = 64     // workers that fill a store

	mostEmulated = 1_000 // records of the emulator of DynamoDB, which is slow
)

// grow measures each store while it fills, and then with more and more connections. It has servers of its own, because those of
// the comparisons are empty for all subjects.
func (r *results) grow() error {
	b, err := bm.Open()
	if err != nil {
		return err
	}
	defer b.Close()
	for _, store := range []bm.Store{bm.InMemory, bm.InRedis, bm.InSQLite, bm.InPostgres, bm.InMariaDB, bm.InDynamoDB} {
		records, limit := b.Records[store], r.records
		switch store {
		case bm.InMemory:
			records = inMemory()
		case bm.InDynamoDB: // only its size says something of the service
			limit = min(limit, mostEmulated)
		}
		if err := r.fill(store, records, limit); err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
		for workers := 1; workers <= 256 && store != bm.InDynamoDB; workers *= 4 {
			if err := r.load(store, records.Store, workers); err != nil {
				return fmt.Errorf("%s: %w", store, err)
			}
		}
	}
	return nil
}

func inMemory() bm.Records {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40, MaxUserBytes: 1 << 40})
	return bm.Records{Store: store, Size: func() (int64, error) {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		runtime.KeepAlive(store)
		return int64(stats.HeapAlloc), nil
	}}
}

// fill adds records to a store, and measures it at each power of ten.
func (r *results) fill(store bm.Store, records bm.Records, most int) error {
	before, err := records.Size()
	if err != nil {
		return err
	}
	held := 0
	for n := min(smallest, most); n <= most; n *= 10 {
		var next atomic.Int64
		err := together(min(fillers, n), func(int) error {
			for next.Add(1) <= int64(n-held) {
				if err := execute(records.Store, newKey()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		after, err := records.Size()
		if err != nil {
			return err
		}
		s := size{store: store, records: n, bytes: (after - before) / int64(n)}
		if store != bm.InDynamoDB { // an emulator's latency says nothing of the service
			if err := s.time(records.Store); err != nil {
				return err
			}
		}
		held = n + probes
		r.sizes = append(r.sizes, s)
		log.Printf("%s, %d records: %d B each", store, n, s.bytes)
	}
	return nil
}

// time measures the latencies, and leaves a record for each probe.
func (s *size) time(store idempotency.Store) (err error) {
	keys := make([]idempotency.Key, probes)
	for i := range keys {
		keys[i] = newKey()
	}
	s.first, err = timed(keys, func(k idempotency.Key) error { return execute(store, k) })
	if err == nil {
		s.replay, err = timed(keys, func(k idempotency.Key) error { return replay(store, k) })
	}
	return err
}

// load measures first executions, and then replays, for r.window each.
func (r *results) load(name bm.Store, store idempotency.Store, workers int) (err error) {
	l := rate{store: name, workers: workers}
	keys := make([]idempotency.Key, workers) // the last one of each worker
	l.first, err = perSecond(workers, r.window, func(worker int) error {
		keys[worker] = newKey()
		return execute(store, keys[worker])
	})
	if err == nil {
		l.replay, err = perSecond(workers, r.window, func(worker int) error { return replay(store, keys[worker]) })
	}
	r.rates = append(r.rates, l)
	return err
}

// perSecond returns how many requests a second the workers make together. Each worker opens its connection before,
// and makes at least one request.
func perSecond(workers int, window time.Duration, do func(worker int) error) (float64, error) {
	if err := together(workers, do); err != nil {
		return 0, err
	}
	var count atomic.Int64
	began := time.Now()
	err := together(workers, func(worker int) error {
		for {
			if err := do(worker); err != nil {
				return err
			}
			count.Add(1)
			if time.Since(began) > window {
				return nil
			}
		}
	})
	return float64(count.Load()) / time.Since(began).Seconds(), err
}

func together(workers int, do func(worker int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for worker := range workers {
		wg.Go(func() { errs[worker] = do(worker) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func timed(keys []idempotency.Key, do func(idempotency.Key) error) (latency, error) {
	took := make([]time.Duration, len(keys))
	for i, k := range keys {
		began := time.Now()
		if err := do(k); err != nil {
			return latency{}, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return latency{took[len(took)/2], took[len(took)*99/100]}, nil
}

func newKey() idempotency.Key {
	id := uuid.NewString()
	return idempotency.Key{User: "account-" + id[:8], Endpoint: "POST /v1/payments", ID: id}
}

const lifetime = 24 * time.Hour

// execute claims a new key and completes it, as a first execution does around its handler.
func execute(store idempotency.Store, key idempotency.Key) error {
	request := idempotency.ClaimRequest{
		Fingerprint: sha256.Sum256([]byte(key.ID)), Lease: 30 * time.Second, TTL: lifetime, TakeOver: true,
	}
	body := make([]byte, bm.Small.Response) // random, so that no database can compress it
	_, _ = rand.Read(body)                  // never fails
	response := idempotency.Response{Status: http.StatusCreated, Body: body, Header: idempotency.NewFields(http.Header{
		"Content-Type": {"application/json"}, "Location": {"/payments/" + key.ID},
	})}
	_, claim, err := store.Begin(context.Background(), key, request)
	if err != nil {
		return err
	}
	if claim == nil {
		return errors.New("a new key is taken")
	}
	return claim.Complete(context.Background(), response, lifetime)
}

// replay asks for a completed key.
func replay(store idempotency.Store, key idempotency.Key) error {
	record, _, err := store.Begin(context.Background(), key, idempotency.ClaimRequest{Lease: time.Minute, TTL: lifetime})
	if err == nil && record.Response == nil {
		err = errors.New("a record is not kept")
	}
	return err
}
