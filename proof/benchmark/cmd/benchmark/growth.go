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

// size has the figures of a store with recordCount records.
type size struct {
	store                       bm.Store
	recordCount                 int
	bytesPerRecord              int64
	firstLatency, replayLatency latency
}

// rate is the throughput of a store with workerCount workers. Each worker has a separate connection and key.
type rate struct {
	store                             bm.Store
	workerCount                       int
	firstsPerSecond, replaysPerSecond float64
}

// latency has the latencies of consecutive requests.
type latency struct{ median, p99 time.Duration }

const (
	minRecords  = 10_000 // because the size of a smaller store depends on the allocation of the store
	probeCount  = 1_000  // requests of each latency
	fillerCount = 64     // workers that fill a store

	maxEmulatedRecords = 1_000 // because the emulator of DynamoDB is slow
)

// measureGrowth measures each store while the store fills, and then with a growing number of connections. measureGrowth
// starts separate servers, because the servers of the comparisons are empty for all subjects.
func (r *results) measureGrowth() error {
	b, err := bm.Open()
	if err != nil {
		return err
	}
	defer b.Close()
	for _, store := range []bm.Store{bm.InMemory, bm.InRedis, bm.InSQLite, bm.InPostgres, bm.InMariaDB, bm.InDynamoDB} {
		records, limit := b.Records[store], r.maxRecords
		switch store {
		case bm.InMemory:
			records = newMemoryRecords()
		case bm.InDynamoDB: // because only the size of the emulator agrees with the service
			limit = min(limit, maxEmulatedRecords)
		}
		if err := r.fillStore(store, records, limit); err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
		for workers := 1; workers <= 256 && store != bm.InDynamoDB; workers *= 4 {
			if err := r.measureRates(store, records.Store, workers); err != nil {
				return fmt.Errorf("%s: %w", store, err)
			}
		}
	}
	return nil
}

func newMemoryRecords() bm.Records {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40, MaxUserBytes: 1 << 40})
	return bm.Records{Store: store, Size: func() (int64, error) {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		runtime.KeepAlive(store)
		return int64(stats.HeapAlloc), nil
	}}
}

// fillStore adds up to maxRecords records to a store, and measures the store at each power of ten.
func (r *results) fillStore(store bm.Store, records bm.Records, maxRecords int) error {
	before, err := records.Size()
	if err != nil {
		return err
	}
	recordsBefore := 0
	for n := min(minRecords, maxRecords); n <= maxRecords; n *= 10 {
		var next atomic.Int64
		err := runWorkers(min(fillerCount, n), func(int) error {
			for next.Add(1) <= int64(n-recordsBefore) {
				if err := executeNewKey(records.Store, newKey()); err != nil {
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
		s := size{store: store, recordCount: n, bytesPerRecord: (after - before) / int64(n)}
		if store != bm.InDynamoDB { // because the latency of the emulator differs from the service
			if err := s.measureLatencies(records.Store); err != nil {
				return err
			}
		}
		recordsBefore = n + probeCount
		r.storeSizes = append(r.storeSizes, s)
		log.Printf("%s, %d records: %d B each", store, n, s.bytesPerRecord)
	}
	return nil
}

// measureLatencies measures the latencies of probeCount requests of each kind. A record for each probe stays in store.
func (s *size) measureLatencies(store idempotency.Store) (err error) {
	keys := make([]idempotency.Key, probeCount)
	for i := range keys {
		keys[i] = newKey()
	}
	s.firstLatency, err = timeRequests(keys, func(k idempotency.Key) error { return executeNewKey(store, k) })
	if err == nil {
		s.replayLatency, err = timeRequests(keys, func(k idempotency.Key) error { return replayKey(store, k) })
	}
	return err
}

// measureRates measures first executions, and then replays, each for r.rateWindow.
func (r *results) measureRates(name bm.Store, store idempotency.Store, workers int) (err error) {
	l := rate{store: name, workerCount: workers}
	keys := make([]idempotency.Key, workers) // the latest key of each worker
	l.firstsPerSecond, err = measurePerSecond(workers, r.rateWindow, func(worker int) error {
		keys[worker] = newKey()
		return executeNewKey(store, keys[worker])
	})
	if err == nil {
		l.replaysPerSecond, err = measurePerSecond(workers, r.rateWindow, func(worker int) error {
			return replayKey(store, keys[worker])
		})
	}
	r.rates = append(r.rates, l)
	return err
}

// measurePerSecond returns the requests a second of all workers together. Each worker opens a connection before the
// measurement, and makes at least one measured request.
func measurePerSecond(workers int, window time.Duration, do func(worker int) error) (float64, error) {
	if err := runWorkers(workers, do); err != nil {
		return 0, err
	}
	var count atomic.Int64
	startedAt := time.Now()
	err := runWorkers(workers, func(worker int) error {
		for {
			if err := do(worker); err != nil {
				return err
			}
			count.Add(1)
			if time.Since(startedAt) > window {
				return nil
			}
		}
	})
	return float64(count.Load()) / time.Since(startedAt).Seconds(), err
}

// runWorkers calls do in a goroutine for each worker, and waits for all calls.
func runWorkers(workers int, do func(worker int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for worker := range workers {
		wg.Go(func() { errs[worker] = do(worker) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// timeRequests calls do for each key, and returns the latencies of the calls.
func timeRequests(keys []idempotency.Key, do func(idempotency.Key) error) (latency, error) {
	durations := make([]time.Duration, len(keys))
	for i, k := range keys {
		startedAt := time.Now()
		if err := do(k); err != nil {
			return latency{}, err
		}
		durations[i] = time.Since(startedAt)
	}
	slices.Sort(durations)
	return latency{durations[len(durations)/2], durations[len(durations)*99/100]}, nil
}

func newKey() idempotency.Key {
	id := uuid.NewString()
	return idempotency.Key{User: "account-" + id[:8], Endpoint: "POST /v1/payments", ID: id}
}

const lifetime = 24 * time.Hour

// executeNewKey claims a new key and completes the claim, as the middleware does for a first execution.
func executeNewKey(store idempotency.Store, key idempotency.Key) error {
	request := idempotency.ClaimRequest{
		Fingerprint: sha256.Sum256([]byte(key.ID)), Lease: 30 * time.Second, TTL: lifetime, TakeOver: true,
	}
	body := make([]byte, bm.Small.Response) // random, because a database could compress other bytes
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

// replayKey reads the record of a completed key.
func replayKey(store idempotency.Store, key idempotency.Key) error {
	record, _, err := store.Begin(context.Background(), key, idempotency.ClaimRequest{Lease: time.Minute, TTL: lifetime})
	if err == nil && record.Response == nil {
		err = errors.New("a record is not kept")
	}
	return err
}
