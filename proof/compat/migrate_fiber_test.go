package compat_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	old "github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/fiberidempotency"
)

// before is a service with fiber's middleware.
func before(app *fiber.App, records fiber.Storage, charge fiber.Handler) {
	app.Post("/payments", old.New(old.Config{Storage: records}), charge)
}

// during is a service with both: fiberidempotency outside, and fiber's middleware with its records inside.
func during(app *fiber.App, records fiber.Storage, charge fiber.Handler, once fiber.Handler) {
	app.Post("/payments", once, old.New(old.Config{Storage: records}), charge)
}

// after is a service with only fiberidempotency.
func after(app *fiber.App, charge fiber.Handler, once fiber.Handler) {
	app.Post("/payments", once, charge)
}

// newGuard returns a middleware with the header, the key check and the lifetime of fiber's middleware.
func newGuard(store idempotency.Store, user idempotency.UserFunc) (*idempotency.Middleware, error) {
	return idempotency.New(store, user, idempotency.Options{
		Headers:     []string{"Idempotency-Key", "X-Idempotency-Key"},
		ValidateKey: idempotency.ValidateUUID,
		TTL:         30 * time.Minute,
		Wait:        10 * time.Second,
	})
}

// userOf returns the user of a request to any version of the service.
func userOf(r *http.Request) (string, error) { return r.Header.Get("User"), nil }

// fiberRecords are the records that the instances of a service share.
type fiberRecords struct {
	fiber.Storage // for the methods that are never called
	all           sync.Map
}

func (s *fiberRecords) GetWithContext(_ context.Context, key string) ([]byte, error) {
	record, _ := s.all.Load(key)
	found, _ := record.([]byte)
	return found, nil
}

func (s *fiberRecords) SetWithContext(_ context.Context, key string, record []byte, _ time.Duration) error {
	s.all.Store(key, record)
	return nil
}

// fiberService is one service in all its versions.
type fiberService struct {
	*testing.T
	records fiberRecords
	store   idempotency.Store
	runs    atomic.Int64
}

func newFiberService(t *testing.T) *fiberService {
	return &fiberService{T: t, store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
}

func (s *fiberService) charge(c fiber.Ctx) error {
	return c.Status(fiber.StatusCreated).SendString("charge " + strconv.FormatInt(s.runs.Add(1), 10))
}

func (s *fiberService) version(mount func(app *fiber.App, once fiber.Handler)) *fiber.App {
	app := fiber.New(fiber.Config{DisablePreParseMultipartForm: true})
	idem, err := newGuard(s.store, userOf)
	require.NoError(s, err)
	once, err := fiberidempotency.Middleware(app, idem)
	require.NoError(s, err)
	mount(app, once)
	return app
}

// requireCharge sends a request through call, and checks the answer.
func (s *fiberService) requireCharge(call func(*http.Request) *http.Response, key, user, want string, replayed bool) {
	s.Helper()
	r := httptest.NewRequest(http.MethodPost, "/payments", nil)
	r.Header.Set("X-Idempotency-Key", key)
	r.Header.Set("User", user)
	resp := call(r)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	require.Equal(s, want, string(body))
	require.Equal(s, http.StatusCreated, resp.StatusCode)
	require.Equal(s, replayed, resp.Header.Get(marker) == "true")
}

func (s *fiberService) to(app *fiber.App) func(*http.Request) *http.Response {
	return func(r *http.Request) *http.Response {
		resp, err := app.Test(r)
		require.NoError(s, err)
		return resp
	}
}

// A service that moves from fiber's middleware to fiberidempotency, through a version with both, never charges a key
// twice.
func TestFromFiberToTheAdapter(t *testing.T) {
	t.Parallel()
	s := newFiberService(t)
	oldest := s.to(s.version(func(app *fiber.App, _ fiber.Handler) { before(app, &s.records, s.charge) }))
	both := s.to(s.version(func(app *fiber.App, once fiber.Handler) { during(app, &s.records, s.charge, once) }))
	newest := s.to(s.version(func(app *fiber.App, once fiber.Handler) { after(app, s.charge, once) }))
	early, late := uuid.NewString(), uuid.NewString()

	s.requireCharge(oldest, early, "alice", "charge 1", false)
	s.requireCharge(oldest, early, "alice", "charge 1", false)
	s.requireCharge(both, early, "alice", "charge 1", false) // replayed from the records of fiber's middleware
	s.requireCharge(both, early, "alice", "charge 1", true)
	s.requireCharge(both, late, "alice", "charge 2", false)
	s.requireCharge(oldest, late, "alice", "charge 2", false) // an old instance that still runs, or comes back
	s.requireCharge(newest, early, "alice", "charge 1", true)
	s.requireCharge(newest, late, "alice", "charge 2", true)
	s.requireCharge(newest, late, "bob", "charge 3", false)
}

// An app that moves behind net/http never charges a key twice either.
func TestFromFiberToNetHTTP(t *testing.T) {
	t.Parallel()
	s := newFiberService(t)
	app := s.version(func(app *fiber.App, _ fiber.Handler) { before(app, &s.records, s.charge) })
	idem, err := newGuard(s.store, userOf)
	require.NoError(t, err)
	handler := idem.Handler(adaptor.FiberApp(app))
	both := func(r *http.Request) *http.Response {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Result()
	}
	early, late := uuid.NewString(), uuid.NewString()
	s.requireCharge(s.to(app), early, "alice", "charge 1", false)
	s.requireCharge(both, early, "alice", "charge 1", false)
	s.requireCharge(both, early, "alice", "charge 1", true)
	s.requireCharge(both, late, "alice", "charge 2", false)
	s.requireCharge(both, late, "alice", "charge 2", true)
	s.requireCharge(s.to(app), late, "alice", "charge 2", false)
}

// A changeover must consider three properties of fiber's middleware: fiber ignores the user of a key, ignores the
// endpoint, and stores a 503.
func TestFiberSharesKeysAndKeepsFailures(t *testing.T) {
	t.Parallel()
	s := newFiberService(t)
	app := s.version(func(app *fiber.App, _ fiber.Handler) { before(app, &s.records, s.charge) })
	key := uuid.NewString()
	s.requireCharge(s.to(app), key, "alice", "charge 1", false)
	s.requireCharge(s.to(app), key, "bob", "charge 1", false)

	failing := s.version(func(app *fiber.App, _ fiber.Handler) {
		before(app, &s.records, func(c fiber.Ctx) error {
			s.runs.Add(1)
			return c.Status(fiber.StatusServiceUnavailable).SendString("down")
		})
	})
	other := uuid.NewString()
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("X-Idempotency-Key", other)
		resp := s.to(failing)(r)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
	}
	require.EqualValues(t, 2, s.runs.Load())
}
