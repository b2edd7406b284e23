//go:build linux

package clocks_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// TestStoreStandsStill stops the server of the store (SIGSTOP) for longer than the leases, with requests at every stop point and
// further requests with the same keys. When the server continues, it executes the commands of the meantime in any order.
func TestStoreStandsStill(t *testing.T) {
	t.Parallel()
	runForEachKind(t, kindsWithRows, func(t *testing.T, k kind) {
		s := &standstill{service: newService(t, k)}
		for range 2 {
			s.addProcess(shortLease, time.Minute)
		}
		rounds, requests := effort.Of(2), 0
		for round := range rounds {
			requests += s.runRound(t, round)
		}
		effort.Count(t, "standstills", rounds)
		effort.Count(t, "requests in them", requests)
	})
}

type standstill struct{ *service }

// pending is a request that has arrived at its stop point when the store stops.
type pending struct {
	key, path, point   string
	resumesBeforeStore bool     // the request continues before the store does
	answers            [2]reply // to the request, and to a second request to another process
}

func (s *standstill) runRound(t *testing.T, round int) int {
	var all []*pending
	for _, path := range []string{"/re-execute", "/refuse"} {
		for _, point := range s.server.kind.reachablePoints() {
			for _, early := range []bool{false, true} {
				for i := range 3 {
					key := fmt.Sprintf("%s-%d-%s-%t-%d", path[1:], round, strings.ReplaceAll(point, " ", "-"), early, i)
					all = append(all, &pending{key: key, path: path, point: point, resumesBeforeStore: early})
				}
			}
		}
	}
	var running sync.WaitGroup
	for _, q := range all {
		running.Go(func() { s.sendFirst(q) })
	}
	for _, q := range all {
		s.ledger.awaitArrival(q.key)
	}
	require.NoError(t, s.server.Pause())
	for _, q := range all {
		running.Go(func() { q.answers[1] = s.sendOnce(s.processes[1].url+q.path, q.key, nil) })
		if q.resumesBeforeStore {
			s.ledger.releaseRequest(q.key)
		}
	}
	time.Sleep(3 * shortLease / 2)
	s.server.Resume()
	for _, q := range all {
		if !q.resumesBeforeStore {
			s.ledger.releaseRequest(q.key)
		}
	}
	running.Wait()
	for _, q := range all {
		s.checkAnswers(q)
	}
	return 2 * len(all)
}

// sendFirst repeats the request until it has arrived at its stop point.
func (s *standstill) sendFirst(q *pending) {
	header := map[string]string{"Point": q.point, "Request-Name": q.key}
	for !s.ledger.hasArrived(q.key) && !s.t.Failed() {
		q.answers[0] = s.sendOnce(s.processes[0].url+q.path, q.key, header)
	}
}

// checkAnswers asks both processes for the final answer, and compares the earlier answers and the effects with it.
func (s *standstill) checkAnswers(q *pending) {
	final := s.awaitAnswer(s.processes[0].url+q.path, q.key, nil)
	assert.Equal(s.t, final, s.awaitAnswer(s.processes[1].url+q.path, q.key, nil), "%+v", q)
	for _, r := range q.answers {
		switch {
		case r.status == http.StatusCreated:
			assert.Equal(s.t, final, r.body, "%+v", q)
		case r.isFromHandler: // the failure of its own execution
		case !r.isProblem("outcome-unknown"):
			assert.NotEmpty(s.t, r.retryAfter, "%+v", q)
		default:
			assert.Equal(s.t, "/refuse", q.path, "%+v", q)
		}
	}
	if effects := s.readEffects(q.key); q.path == "/refuse" || s.server.kind.hasRows {
		assert.Equal(s.t, []string{final}, effects, "%+v", q)
	} else {
		assert.Contains(s.t, effects, final, "%+v", q)
	}
}
