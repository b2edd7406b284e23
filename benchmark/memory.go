package benchmark

import (
	"net/http"

	"github.com/idempotency-go/idempotency"
)

// The subjects without a store of their own, or with one in memory.
var (
	BareHandler = Subject{Name: "bare handler", Role: Bare, Store: InMemory,
		Open: func(_ *Backends, app *App) (*Target, error) { return OverHTTP(app), nil }}

	FloorMemory = Subject{Name: "floor", Role: Floor, Store: InMemory,
		Lacks: "no lease, expiry, scope or error handling; sends before it stores",
		Open:  func(_ *Backends, app *App) (*Target, error) { return OverHTTP(newFloor(app)), nil }}

	Memory = Subject{Name: "idempotency, memory", Role: Library, Store: InMemory,
		Open: func(_ *Backends, app *App) (*Target, error) {
			return overLibrary(idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40}), app)
		}}
)

// overLibrary is the target that the library makes of app with a store.
func overLibrary(store idempotency.Store, app *App) (*Target, error) {
	m, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		return nil, err
	}
	return OverHTTP(m.Handler(app)), nil
}

// user reads the caller's name from where an authenticating middleware might have left it.
func user(r *http.Request) (string, error) { return r.Host, nil }
