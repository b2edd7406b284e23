package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/idempotency-go/idempotency"
	bm "github.com/idempotency-go/idempotency/proof/benchmark"
)

// lookup has the latency of finding an operation by its ID in a store with recordCount records.
type lookup struct {
	store       bm.Store
	recordCount int
	latency
}

// measureLookups measures each store that can be filled with copies, on a server of its own, because the records of all
// stores together would need too much room.
func (r *results) measureLookups() error {
	for _, store := range []bm.Store{bm.InRedis, bm.InSQLite, bm.InPostgres, bm.InMariaDB} {
		b, err := bm.OpenStore(store)
		if err == nil {
			err = r.measureLookup(store, b.Records[store])
			b.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", store, err)
		}
	}
	return nil
}

// measureLookup fills a store, and finds probeCount operations in the store.
func (r *results) measureLookup(store bm.Store, records bm.Records) error {
	keys := make([]idempotency.Key, min(probeCount, r.lookupRecords))
	for i := range keys {
		keys[i] = newKey()
		if err := executeNewKey(records.Store, keys[i]); err != nil {
			return err
		}
	}
	startedAt := time.Now()
	if err := records.Copy(r.lookupRecords - len(keys)); err != nil {
		return err
	}
	log.Printf("%s: %d records in %.0f s", store, r.lookupRecords, time.Since(startedAt).Seconds())
	inspector := records.Store.(idempotency.Inspector)
	found, err := timeRequests(keys, func(key idempotency.Key) error {
		_, err := inspector.InspectOperation(context.Background(), key.OperationID())
		return err
	})
	log.Printf("%s: an operation is found in %v, %v", store, found.median, found.p99)
	r.lookups = append(r.lookups, lookup{store, r.lookupRecords, found})
	return err
}
