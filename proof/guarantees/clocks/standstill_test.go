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

// TestStoreStandsStill stops the server of the store (SIGSTOP) for longer than the leases, while requests are at every
// point and others ask for the same keys. What was sent meanwhile is carried out when it goes on, in any order.
func TestStoreStandsStill(t *testing.T) {
	t.Parallel()
	each(t, withRows, func(t *testing.T, k kind) {
		s := &standstill{service: newService(t, k)}
		for range 2 {
			s.run(briefly, time.Minute)
		}
		rounds, requests := effort.Of(2), 0
		for round := range rounds {
			requests += s.round(t, round)
		}
		effort.Count(t, "standstills", rounds)
		effort.Count(t, "requests in them", requests)
	})
}

type standstill struct{ *service }

// pending is a request that is at a point when the store stops. Early: it goes on before the store does.
type pending struct {
	key, path, point string
	early            bool
	answers          [2]reply // of the first one, and of one to another process
}

func (s *standstill) round(t *testing.T, round int) int {
	var all []*pending
	for _, path := range []string{"/re-execute", "/refuse"} {
		for _, point := range s.server.kind.points() {
			for _, early := range []bool{false, true} {
				for i := range 3 {
					key := fmt.Sprintf("%s-%d-%s-%t-%d", path[1:], round, strings.ReplaceAll(point, " ", "-"), early, i)
					all = append(all, &pending{key: key, path: path, point: point, early: early})
				}
			}
		}
	}
	var running sync.WaitGroup
	for _, q := range all {
		running.Go(func() { s.first(q) })
	}
	for _, q := range all {
		s.ledger.awaitStanding(q.key)
	}
	require.NoError(t, s.server.Pause())
	for _, q := range all {
		running.Go(func() { q.answers[1] = s.ask(s.processes[1].url+q.path, q.key, nil) })
		if q.early {
			s.ledger.release(q.key)
		}
	}
	time.Sleep(3 * briefly / 2)
	s.server.Resume()
	for _, q := range all {
		if !q.early {
			s.ledger.release(q.key)
		}
	}
	running.Wait()
	for _, q := range all {
		s.judge(q)
	}
	return 2 * len(all)
}

// first sends the request until it has been at its point.
func (s *standstill) first(q *pending) {
	header := map[string]string{"Point": q.point, "Visitor": q.key}
	for !s.ledger.stands(q.key) && !s.t.Failed() {
		q.answers[0] = s.ask(s.processes[0].url+q.path, q.key, header)
	}
}

// judge asks for the answer, and compares it with those that were given.
func (s *standstill) judge(q *pending) {
	final := s.final(s.processes[0].url+q.path, q.key, nil)
	assert.Equal(s.t, final, s.final(s.processes[1].url+q.path, q.key, nil), "%+v", q)
	for _, r := range q.answers {
		switch {
		case r.status == http.StatusCreated:
			assert.Equal(s.t, final, r.body, "%+v", q)
		case r.handled: // its own failure
		case !r.says("outcome-unknown"):
			assert.NotEmpty(s.t, r.retry, "%+v", q)
		default:
			assert.Equal(s.t, "/refuse", q.path, "%+v", q)
		}
	}
	if effects := s.effects(q.key); q.path == "/refuse" || s.server.kind.rows {
		assert.Equal(s.t, []string{final}, effects, "%+v", q)
	} else {
		assert.Contains(s.t, effects, final, "%+v", q)
	}
}
