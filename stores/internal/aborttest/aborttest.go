// Package aborttest sends requests to a service while connections to its database break, and while handlers and clients give up.
// The tests of steps in transactions share the package.
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

// Service is a service that reaches its database through a proxy. The handler calls Interrupt at each place where an interruption
// may happen, and answers with status 201.
type Service struct {
	*testing.T
	Proxy    *servertest.Proxy
	Handler  http.Handler
	Patterns []string // patterns of statements that get a fault; "" matches all statements

	mu                sync.Mutex
	answerByKey       map[string]string
	interruptionCount atomic.Int64
}

// Run sends requests with different keys while connections break, and repeats each request until the answer. Run returns the
// answers by key.
func (s *Service) Run(keys int) map[string]string {
	s.Helper()
	s.answerByKey = map[string]string{}
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
	require.Len(s, s.answerByKey, keys)
	s.Logf("%d interruptions of handlers", s.interruptionCount.Load())
	return maps.Clone(s.answerByKey)
}

// Interrupt interrupts a handler at random, in 4 of oneOf calls: with a panic, with an error, by kill, or with a pause shorter than
// stall. The function kill ends the database session of the handler's transaction; outside of a transaction kill is nil.
func (s *Service) Interrupt(oneOf int, stall time.Duration, kill func()) error {
	what := rand.IntN(oneOf)
	if what < 4 {
		s.interruptionCount.Add(1)
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
	case 3: // meanwhile leases are renewed, or the server ends the session
		time.Sleep(rand.N(stall))
	}
	return nil
}

// injectFaults injects random faults in the background until stop is called.
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

// sendUntilDone repeats a request until the answer.
func (s *Service) sendUntilDone(key string) {
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if w := s.sendRequest(key); w != nil && w.Code == http.StatusCreated {
			s.mu.Lock()
			s.answerByKey[key] = w.Body.String()
			s.mu.Unlock()
			return
		}
	}
	s.Errorf("%s was not answered", key)
}

// sendRequest sends a request, which the client sometimes cancels. sendRequest returns nil if the handler has panicked.
func (s *Service) sendRequest(key string) (w *httptest.ResponseRecorder) {
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

// RequireReplays checks that a retry of each key is a replay of the answer.
func (s *Service) RequireReplays() {
	s.Helper()
	for key, answer := range s.answerByKey {
		var w *httptest.ResponseRecorder
		require.Eventually(s, func() bool { // the pool still has broken connections
			w = s.sendRequest(key)
			return w != nil && w.Code == http.StatusCreated
		}, 30*time.Second, 10*time.Millisecond)
		require.Equal(s, answer, w.Body.String())
		require.Equal(s, "true", w.Header().Get("Idempotent-Replayed"))
	}
}
