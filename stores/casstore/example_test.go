package casstore_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/casstore"
)

// mapTable shows what the calls of a table do. Its database is a map.
type mapTable struct {
	mu     sync.Mutex
	values map[string]casstore.Value
	writes int
}

var _ casstore.Table = (*mapTable)(nil)

func (t *mapTable) Get(_ context.Context, key string) (casstore.Value, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	value, found := t.values[key]
	if !found {
		return casstore.Value{}, casstore.ErrNotFound
	}
	return value, nil
}

func (t *mapTable) Create(_ context.Context, key string, data []byte, ttl time.Duration) (string, error) {
	return t.put(key, "", data) // nothing expires here, so ttl is ignored
}

func (t *mapTable) Replace(_ context.Context, key, version string, data []byte, ttl time.Duration) (string, error) {
	return t.put(key, version, data)
}

func (t *mapTable) put(key, version string, data []byte) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.values[key].Version != version {
		return "", casstore.ErrConflict
	}
	t.writes++
	t.values[key] = casstore.Value{Data: data, Version: strconv.Itoa(t.writes)}
	return t.values[key].Version, nil
}

func (t *mapTable) Delete(_ context.Context, key, version string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.values[key].Version != version {
		return casstore.ErrConflict
	}
	delete(t.values, key)
	return nil
}

func Example() {
	table := &mapTable{values: make(map[string]casstore.Value)}
	store := casstore.New(table, casstore.Options{Skew: 5 * time.Second})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("POST /payments", idem.Handler(http.NotFoundHandler()))
	fmt.Println(store.Validate(idempotency.RunnerOptions{}))
	// Output: <nil>
}
