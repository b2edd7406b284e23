package kept

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"time"

	"github.com/idempotency-go/idempotency"
)

const room = 16 << 30 // of a store in memory

func openMemory(int) (*Target, error) {
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: room, MaxUserBytes: room})
	t := &Target{Store: store}
	t.Size = func() (int64, error) {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		runtime.KeepAlive(store)
		return int64(stats.HeapAlloc), nil
	}
	copies := 0
	t.Copy = func(ctx context.Context, key idempotency.Key, n int, end time.Time) error {
		record, _, err := store.Begin(ctx, key, idempotency.ClaimRequest{Lease: time.Minute, TTL: time.Hour})
		if err != nil || record.Response == nil {
			return errors.Join(err, errors.New("no record to copy"))
		}
		for range n {
			copies++
			key.ID = "copy-" + strconv.Itoa(copies)
			_, claim, err := store.Begin(ctx, key, idempotency.ClaimRequest{Lease: time.Second, TTL: time.Until(end)})
			if err != nil {
				return err
			}
			if err := claim.Complete(ctx, *record.Response, time.Until(end)); err != nil {
				return err
			}
		}
		return nil
	}
	return t, nil
}
