// Package aborttest sends requests to a service whose connections to its database break, and whose handlers and clients
// give up. Tests of steps in transactions share it.
package aborttest

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/servertest"
)

// Service is a service that reaches its database through a proxy. Its handler calls Interrupt where it may be
// interrupted, and answers with 201.
type Service struct {
	*testing.T
	Proxy    *servertest.Proxy
	Handler  http.Handler
	Patterns []string // of the statements that are struck; "" is that of all

	mu      sync.Mutex
	answers map[string]string // by key
	trouble atomic.Int64      // handlers that were interrupted
}

// Run sends requests with keys of their own, while connections break, until each is answered. It returns the answers by
// key.
func (s *Service) Run(keys int) map[string]string {
	s.Helper()
	s.answers = map[string]string{}
	stop := s.injectFaults()
	var crowd sync.WaitGroup
	const workers = 4
	for range workers {
		crowd.Go(func() {
			for range keys / workers {
				s.sendUntilDone(uuid.NewString())
			}
		})
	}
	crowd.Wait()
	stop()
	require.Len(s, s.answers, keys)
	s.Logf("%d interruptions of handlers", s.trouble.Load())
	return maps.Clone(s.answers)
}

// Interrupt does what may happen to a handler, once in a while. Kill ends the session of its transaction, and is nil
// outside of one. A handler that stands still does so for less than stall.
func (s *Service) Interrupt(oneOf int, stall time.Duration, kill func()) error {
	what := rand.IntN(oneOf)
	if what < 4 {
		s.trouble.Add(1)
	}
	switch what {
	case 0:
		panic(http.ErrAbortHandler)
	case 1:
		return errors.New("the handler gives up")
	case 2:
		if kill != nil {
			kill()
		}
	case 3: // renewals go on, or the server ends the session
		time.Sleep(rand.N(stall))
	}
	return nil
}

func (s *Service) injectFaults() (stop func()) {
	faults := []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.CutRequest, servertest.CutReply, servertest.HoldReply,
		servertest.DelayRequest, servertest.LateRequest, servertest.DelayReply,
	}
	ctx, cancel := context.WithCancel(s.Context())
	var injector sync.WaitGroup
	injector.Go(func() {
		for ctx.Err() == nil {
			s.Proxy.Inject(servertest.Rule{
				Fault: faults[rand.IntN(len(faults))], Pattern: s.Patterns[rand.IntN(len(s.Patterns))], Skip: rand.IntN(3),
			})
			time.Sleep(rand.N(80 * time.Millisecond))
		}
		s.Proxy.Inject(servertest.Rule{})
		s.Proxy.Release()
	})
	return func() {
		cancel()
		injector.Wait()
	}
}

// sendUntilDone sends a request until it is answered.
func (s *Service) sendUntilDone(key string) {
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if w := s.send(key); w != nil && w.Code == http.StatusCreated {
			s.mu.Lock()
			s.answers[key] = w.Body.String()
			s.mu.Unlock()
			return
		}
	}
	s.Errorf("%s was not answered", key)
}

// send sends a request whose client may leave. It returns nil if the handler has panicked.
func (s *Service) send(key string) (w *httptest.ResponseRecorder) {
	defer func() {
		if recover() != nil {
			w = nil
		}
	}()
	ctx := s.Context()
	if rand.IntN(10) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(30*time.Millisecond))
		defer cancel()
	}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", key)
	w = httptest.NewRecorder()
	s.Handler.ServeHTTP(w, r)
	return w
}

// RequireReplays checks that each key is answered again by its answer, and not by its handler.
func (s *Service) RequireReplays() {
	s.Helper()
	for key, answer := range s.answers {
		var w *httptest.ResponseRecorder
		require.Eventually(s, func() bool { // connections that were struck are still in the pool
			w = s.send(key)
			return w != nil && w.Code == http.StatusCreated
		}, 30*time.Second, 10*time.Millisecond)
		require.Equal(s, answer, w.Body.String())
		require.Equal(s, "true", w.Header().Get("Idempotent-Replayed"))
	}
}
