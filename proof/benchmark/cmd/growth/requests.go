package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

type key = idempotency.Key

func newKey() key {
	id := uuid.NewString()
	return key{User: "account-" + id[:8], Endpoint: "POST /v1/payments", ID: id}
}

func newKeys(n int) []key {
	keys := make([]key, n)
	for i := range keys {
		keys[i] = newKey()
	}
	return keys
}

var (
	request = idempotency.ClaimRequest{Lease: 30 * time.Second, TTL: lifetime}
	answer  = idempotency.Response{Status: 201, Body: make([]byte, 200)}
)

// execute claims a new key and completes it, as a first execution does around its handler.
func execute(ctx context.Context, store idempotency.Store, k key) error {
	_, claim, err := store.Begin(ctx, k, request)
	if err != nil {
		return err
	}
	if claim == nil {
		return errors.New("a new key is taken")
	}
	return claim.Complete(ctx, answer, lifetime)
}

// replay asks for a completed key.
func replay(ctx context.Context, store idempotency.Store, k key) error {
	record, _, err := store.Begin(ctx, k, request)
	if err == nil && record.Response == nil {
		err = errors.New("a record is not kept")
	}
	return err
}

// latency is how long requests took, one after the other.
type latency struct{ median, slow time.Duration } // slow: 99 of 100 were faster

func (l latency) String() string {
	return fmt.Sprintf("%s, %s", microseconds(l.median), microseconds(l.slow))
}

func microseconds(d time.Duration) string {
	if d >= time.Millisecond {
		return fmt.Sprintf("%.3g ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.3g us", d.Seconds()*1e6)
}

func timed(keys []key, do func(key) error) (latency, error) {
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

// rate returns how many requests a second so many workers make together in about a second. Each makes one before that,
// for its connection.
func rate(workers int, do func(worker int) error) (float64, error) {
	const window = time.Second
	var connected, all sync.WaitGroup
	connected.Add(workers)
	counts, failures := make([]int, workers), make([]error, workers)
	for worker := range workers {
		all.Go(func() {
			failures[worker] = do(worker)
			connected.Done()
			connected.Wait()
			for began := time.Now(); time.Since(began) < window && failures[worker] == nil; counts[worker]++ {
				failures[worker] = do(worker)
			}
		})
	}
	connected.Wait()
	began := time.Now()
	all.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return float64(total) / time.Since(began).Seconds(), errors.Join(failures...)
}
