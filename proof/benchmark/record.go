package benchmark

import (
	"context"
	"crypto/sha256"
	"runtime"

	"github.com/idempotency-go/idempotency"
)

// RecordOverhead returns how many bytes a record takes in a memory store that holds n of them, beyond its content: key,
// fingerprint, token and answer.
func RecordOverhead(n int) (float64, error) {
	ctx := context.Background()
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40})
	before := heap()
	const together = 10_000 // keys that are alive at once
	for range n / together {
		if err := each(NewKeys(together), func(id string) error { return execute(ctx, store, id) })(); err != nil {
			return 0, err
		}
	}
	size := float64(heap()-before) / float64(n)
	runtime.KeepAlive(store)
	return size - contentSize(), nil
}

// heap returns the size of what is alive.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// contentSize is what an entry holds in any store.
func contentSize() float64 {
	key, _, resp := entry(NewKeys(1)[0])
	const token = 16
	n := len(key.User) + len(key.Endpoint) + len(key.ID) + sha256.Size + token + len(resp.Body)
	for name, values := range resp.Header.Header() {
		n += len(name) + len(values[0])
	}
	return float64(n)
}
