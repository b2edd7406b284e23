package compat_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/stretchr/testify/assert"
)

// README.md and docs/comparison.md describe fiber's own middleware, with its defaults and with a shared Storage.
// This test shows the described behaviour.
func TestFiberMiddlewareDoesWhatTheComparisonSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler fiber.Handler
		second  func(*http.Request) // changes the second request
		status  int                 // status of the second answer
		runs    int64
	}{
		"the same request":         {handler: peerCreated, status: 201, runs: 1},
		"another user":             {handler: peerCreated, second: asUser("mallory"), status: 201, runs: 1},
		"another path":             {handler: peerCreated, second: toPath("/refunds"), status: 201, runs: 1},
		"another body":             {handler: peerCreated, second: withAmount("9900"), status: 201, runs: 1},
		"503":                      {handler: peerDown, status: 503, runs: 1},
		"a returned error":         {handler: peerDeclines, status: 402, runs: 2},
		"an answer over BodyLimit": {handler: peerLarge(fiber.DefaultBodyLimit + 1), status: 200, runs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			app := newPeer(&runs, c.handler, idempotency.Config{Storage: new(peerStorage)})
			first, firstBody := askPeer(t, app, peerOrder())
			req := peerOrder()
			if c.second != nil {
				c.second(req)
			}
			second, secondBody := askPeer(t, app, req)

			assert.Equal(t, c.status, second.StatusCode)
			assert.Equal(t, c.runs, runs.Load())
			assert.Equal(t, firstBody, secondBody)
			assert.Equal(t, first.Header.Values("Location"), second.Header.Values("Location"))
		})
	}
}

func TestFiberMiddlewareWaitsForTheFirstRequest(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	locks := &peerLocks{MemoryLock: idempotency.NewMemoryLock(), second: make(chan struct{})}
	app := newPeer(&runs, func(c fiber.Ctx) error {
		if err := awaitEvent(locks.second); err != nil {
			return err
		}
		return peerCreated(c)
	}, idempotency.Config{Storage: new(peerStorage), Lock: locks})
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			res, body := askPeer(t, app, peerOrder())
			assert.Equal(t, http.StatusCreated, res.StatusCode)
			assert.Equal(t, "alice ordered at /orders", body)
		})
	}
	both.Wait()
	assert.EqualValues(t, 1, runs.Load())
}

// Two processes share the stored answers, but the default Lock is in the memory of each process.
func TestFiberMiddlewareInTwoProcessesRunsTwice(t *testing.T) {
	t.Parallel()
	var runs, entered atomic.Int64
	shared, second := new(peerStorage), make(chan struct{})
	h := func(c fiber.Ctx) error {
		if entered.Add(1) == 2 {
			close(second)
		}
		if err := awaitEvent(second); err != nil {
			return err
		}
		return peerCreated(c)
	}
	var both sync.WaitGroup
	for range 2 {
		app := newPeer(&runs, h, idempotency.Config{Storage: shared})
		both.Go(func() {
			res, _ := askPeer(t, app, peerOrder())
			assert.Equal(t, http.StatusCreated, res.StatusCode, "the handlers did not run at the same time")
		})
	}
	both.Wait()
	assert.EqualValues(t, 2, runs.Load())
}

func TestFiberMiddlewareWhenTheStorageFailsAfterTheHandler(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	storage := new(peerStorage)
	storage.broken.Store(true)
	app := newPeer(&runs, peerCreated, idempotency.Config{Storage: storage})
	res, _ := askPeer(t, app, peerOrder())
	assert.Equal(t, http.StatusInternalServerError, res.StatusCode)
	storage.broken.Store(false)
	res, _ = askPeer(t, app, peerOrder())
	assert.Equal(t, http.StatusCreated, res.StatusCode)
	assert.EqualValues(t, 2, runs.Load())
}

// newPeer returns an app with fiber's own middleware.
func newPeer(runs *atomic.Int64, h fiber.Handler, cfg idempotency.Config) *fiber.App {
	app := fiber.New()
	app.Use(idempotency.New(cfg))
	app.Post("/:any", func(c fiber.Ctx) error {
		runs.Add(1)
		return h(c)
	})
	return app
}

func peerCreated(c fiber.Ctx) error {
	c.Location("/orders/1")
	return c.Status(fiber.StatusCreated).SendString(c.Get("X-User") + " ordered at " + c.Path())
}

func peerDown(c fiber.Ctx) error {
	return c.Status(fiber.StatusServiceUnavailable).SendString("try again")
}

func peerDeclines(fiber.Ctx) error { return fiber.NewError(fiber.StatusPaymentRequired, "declined") }

func peerLarge(size int) fiber.Handler {
	return func(c fiber.Ctx) error { return c.Send(bytes.Repeat([]byte("a"), size)) }
}

func peerOrder() *http.Request {
	req := httptest.NewRequest(http.MethodPost, "/orders", strings.NewReader("4200"))
	req.Header.Set("X-Idempotency-Key", "c8ad2f36-4b8f-4d4e-9d57-0f6ad4a0a3f1")
	req.Header.Set("X-User", "alice")
	return req
}

func asUser(user string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("X-User", user) }
}

func toPath(path string) func(*http.Request) {
	return func(r *http.Request) { r.URL.Path = path; r.RequestURI = path }
}

func withAmount(amount string) func(*http.Request) {
	return func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(amount)) }
}

// askPeer sends a request to an app without a network, and returns the answer.
func askPeer(t *testing.T, app *fiber.App, req *http.Request) (*http.Response, string) {
	res, err := app.Test(req, fiber.TestConfig{Timeout: long})
	if !assert.NoError(t, err) {
		return &http.Response{}, ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	assert.NoError(t, err)
	return res, string(body)
}

// awaitEvent waits for an expected event.
func awaitEvent(happens <-chan struct{}) error {
	select {
	case <-happens:
		return nil
	case <-time.After(long):
		return errors.New("it did not happen")
	}
}

// peerLocks signals when a second request asks for a lock.
type peerLocks struct {
	*idempotency.MemoryLock
	asked  atomic.Int64
	second chan struct{}
}

func (l *peerLocks) Lock(key string) error {
	if l.asked.Add(1) == 2 {
		close(l.second)
	}
	return l.MemoryLock.Lock(key)
}

// peerStorage is a Storage that can be shared. While the storage is broken, it stores nothing.
type peerStorage struct {
	values sync.Map
	broken atomic.Bool
}

func (s *peerStorage) GetWithContext(_ context.Context, key string) ([]byte, error) {
	return s.Get(key)
}
func (s *peerStorage) Get(key string) ([]byte, error) {
	value, _ := s.values.Load(key)
	stored, _ := value.([]byte)
	return stored, nil
}

func (s *peerStorage) SetWithContext(_ context.Context, key string, value []byte, ttl time.Duration) error {
	return s.Set(key, value, ttl)
}

func (s *peerStorage) Set(key string, value []byte, _ time.Duration) error {
	if s.broken.Load() {
		return errors.New("down")
	}
	s.values.Store(strings.Clone(key), bytes.Clone(value))
	return nil
}

func (s *peerStorage) DeleteWithContext(_ context.Context, key string) error { return s.Delete(key) }
func (s *peerStorage) Delete(key string) error                               { s.values.Delete(key); return nil }
func (s *peerStorage) ResetWithContext(context.Context) error                { return s.Reset() }
func (s *peerStorage) Reset() error                                          { s.values.Clear(); return nil }
func (s *peerStorage) Close() error                                          { return nil }
