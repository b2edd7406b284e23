package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/idempotency-go/idempotency/proof/benchmark/internal/kept"
)

// load is how many requests a second a store serves to so many workers, each of which has a connection.
type load struct {
	store   string
	workers int
	first   float64
	replay  float64
}

const mostConnections = 512

// connect measures first executions and replays of keys that nobody else asks for.
func connect(subject kept.Subject) (loads []load, err error) {
	target, err := subject.Open(mostConnections)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	ctx := context.Background()
	for workers := 1; workers <= mostConnections; workers *= 2 {
		l := load{store: subject.Name, workers: workers}
		keys := newKeys(workers) // the last one of each worker
		l.first, err = rate(workers, func(worker int) error {
			keys[worker] = newKey()
			return execute(ctx, target.Store, keys[worker])
		})
		if err != nil {
			return nil, err
		}
		if l.replay, err = rate(workers, func(worker int) error { return replay(ctx, target.Store, keys[worker]) }); err != nil {
			return nil, err
		}
		log.Printf("%s, %d workers: %.0f first executions a second, %.0f replays", l.store, workers, l.first, l.replay)
		loads = append(loads, l)
	}
	return loads, nil
}

// heat is how many requests a second a store serves if all ask for one key, and if each worker has its own.
type heat struct {
	store             string
	replays, running  float64 // of one key that is completed, and of one that is held
	replaysOfManyKeys float64
}

const hotWorkers = 64

func warm(subject kept.Subject) ([]heat, error) {
	target, err := subject.Open(hotWorkers)
	if err != nil {
		return nil, err
	}
	defer target.Close()
	ctx, keys, held := context.Background(), newKeys(hotWorkers), newKey()
	for _, k := range keys {
		if err := execute(ctx, target.Store, k); err != nil {
			return nil, err
		}
	}
	_, claim, err := target.Store.Begin(ctx, held, request)
	if err != nil {
		return nil, err
	}
	h := heat{store: subject.Name}
	for rated, do := range map[*float64]func(worker int) error{
		&h.replays:           func(int) error { return replay(ctx, target.Store, keys[0]) },
		&h.replaysOfManyKeys: func(worker int) error { return replay(ctx, target.Store, keys[worker]) },
		&h.running:           func(int) error { return refused(ctx, target, held) },
	} {
		if *rated, err = rate(hotWorkers, do); err != nil {
			return nil, err
		}
	}
	log.Printf("%s: of one key %.0f replays a second and %.0f duplicates, of many keys %.0f replays",
		h.store, h.replays, h.running, h.replaysOfManyKeys)
	return []heat{h}, claim.Release(ctx, time.Minute)
}

// refused asks for a key that is held.
func refused(ctx context.Context, target *kept.Target, held key) error {
	_, claim, err := target.Store.Begin(ctx, held, request)
	if err == nil && claim != nil {
		err = fmt.Errorf("key %s was claimed twice", held.ID)
	}
	return err
}
