package main

import (
	"context"
	"log"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency/proof/benchmark/internal/kept"
)

// size is what was measured of a store with so many records.
type size struct {
	records     int
	bytes       int64 // each record
	claim       latency
	replay      latency
	expiring    latency       // of a claim, while a tenth of the records expires
	maintenance time.Duration // of that tenth; zero: nobody has to call it
	store       string
}

const (
	smallest = 10_000
	probes   = 2_000 // requests of each measurement, one after the other
	lifetime = 24 * time.Hour
)

// grow fills a store step by step, ten times as much with each, and measures it after each.
func grow(subject kept.Subject, most int) (sizes []size, err error) {
	target, err := subject.Open(1 + 2) // one for requests, two for maintenance
	if err != nil {
		return nil, err
	}
	defer target.Close()
	empty, err := target.Size()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	first := newKey()
	if err := execute(ctx, target.Store, first); err != nil {
		return nil, err
	}
	held := 1
	for records := smallest; records <= most; records *= 10 {
		if err := target.Copy(ctx, first, records-held, time.Now().Add(lifetime)); err != nil {
			return nil, err
		}
		held = records
		taken, err := target.Size()
		if err != nil {
			return nil, err
		}
		s := size{store: subject.Name, records: records, bytes: (taken - empty) / int64(records)}
		if err := s.measure(ctx, target, first); err != nil {
			return nil, err
		}
		log.Printf("%s, %d records: %d B each; claim %v, replay %v, claim while records expire %v; maintenance %v",
			s.store, s.records, s.bytes, s.claim, s.replay, s.expiring, s.maintenance)
		sizes = append(sizes, s)
	}
	return sizes, nil
}

// measure takes the times of requests, and again while a tenth of the records expires.
func (s *size) measure(ctx context.Context, target *kept.Target, first key) (err error) {
	keys := newKeys(probes)
	if s.claim, err = timed(keys, func(k key) error { return execute(ctx, target.Store, k) }); err != nil {
		return err
	}
	if s.replay, err = timed(keys, func(k key) error { return replay(ctx, target.Store, k) }); err != nil {
		return err
	}
	tenth, end := s.records/10, time.Now().Add(-time.Hour)
	if target.Maintain == nil { // what has ended may go at any time, so it ends when the copies are made
		end = time.Now().Add(time.Duration(s.records) * 2 * time.Microsecond)
	}
	if err := target.Copy(ctx, first, tenth, end); err != nil {
		return err
	}
	time.Sleep(time.Until(end))
	var maintained sync.WaitGroup
	var failed error
	maintained.Go(func() {
		if target.Maintain != nil {
			began := time.Now()
			failed = target.Maintain(ctx)
			s.maintenance = time.Since(began)
		}
	})
	s.expiring, err = timed(newKeys(probes), func(k key) error { return execute(ctx, target.Store, k) })
	maintained.Wait()
	if failed != nil {
		return failed
	}
	return err
}
