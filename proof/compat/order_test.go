package compat_test

import (
	"crypto/rand"
	"flag"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/idempotency-go/idempotency"
)

var everyOrder = flag.Bool("orders", false, "try every order of middlewares, not a sample")

// sampled is the size of the sample: without -orders, one in sampled orders is tried. The number is prime, so that
// the sample has no pattern.
const sampled = 47

// rule says that the first part belongs outside the second part.
type rule struct{ outer, inner part }

// rules are the constraints on a sensible order. The rules leave all other positions free. TestMisplaced shows for
// each rule what goes wrong otherwise.
var rules = []rule{
	{authentication, guarding},
	{crossOrigin, authentication},
	{crossOrigin, guarding},
	{compression, guarding},
	{deadline, guarding},
}

// orders returns every sensible order, with each of the two timeouts.
var orders = sync.OnceValue(func() (all []order) {
	for _, late := range []part{ctxTimeout, deadline} {
		parts := []part{tracing, accessLog, recovery, crossOrigin, compression, late, authentication, guarding}
		permute(parts, nil, func(o order) { all = append(all, slices.Clone(o)) })
	}
	return all
})

// permute calls do with each sensible order that begins with head and continues with the parts of rest.
func permute(rest []part, head order, do func(order)) {
	if len(rest) == 0 {
		do(head)
		return
	}
	for i, p := range rest {
		others := slices.Delete(slices.Clone(rest), i, i+1)
		if !belongsOutside(others, p) {
			permute(others, append(head, p), do)
		}
	}
}

// belongsOutside reports whether one of the parts belongs outside p.
func belongsOutside(parts []part, p part) bool {
	return slices.ContainsFunc(rules, func(r rule) bool { return r.inner == p && slices.Contains(parts, r.outer) })
}

func sample(all []order) (some []order) {
	for i := 0; i < len(all); i += sampled {
		some = append(some, all[i])
	}
	return some
}

// The sample has every pair of neighbours, and every pair of outer and inner part, that occurs in any order.
func TestSampleOfOrders(t *testing.T) {
	t.Parallel()
	require.Equal(t, pairs(orders()), pairs(sample(orders())))
}

// pairs returns the pairs of an outer and an inner part, and whether the two parts are neighbours.
func pairs(of []order) map[[2]part]map[bool]bool {
	found := make(map[[2]part]map[bool]bool)
	for _, o := range of {
		for i, outer := range o {
			for j, inner := range o[i+1:] {
				p := [2]part{outer, inner}
				if found[p] == nil {
					found[p] = make(map[bool]bool)
				}
				found[p][j == 0] = true
			}
		}
	}
	return found
}

// In every sensible order, a retry gets the first answer, and all other middlewares do their work. In proof/compat,
// "go test -run TestOrders . -orders" tries all orders.
func TestOrders(t *testing.T) {
	t.Parallel()
	w, all := newOrderServer(t), sample(orders())
	if *everyOrder {
		all = orders()
	}
	for _, o := range all {
		t.Run(o.String(), func(t *testing.T) {
			t.Parallel()
			s := orderedService{w, o, w.open(o)}
			s.retries(t)
			s.refuses(t)
			s.panics(t)
			synctest.Test(t, func(t *testing.T) {
				w := newOrderServer(t)
				orderedService{w, o, w.open(o)}.isLate(t)
			})
		})
	}
}

// orderedService is a service whose middlewares are in a given order.
type orderedService struct {
	*orderServer
	order
	service http.Handler
}

// retries sends a payment, and then sends the payment again with and without gzip, without a token, and with a
// different body.
func (s orderedService) retries(t *testing.T) {
	t.Helper()
	key := rand.Text()
	first := s.ask(t, ask{key: key, gzip: true}, handling)
	s.requirePayment(t, first)
	require.False(t, first.replayed())
	s.requireOutcome(t, first, idempotency.OutcomeExecuted)

	same := s.ask(t, ask{key: key, gzip: true}, guarding)
	s.requirePayment(t, same)
	require.Equal(t, first.lasting("Content-Length"), same.lasting("Content-Length"))
	plain := s.ask(t, ask{key: key}, guarding)
	s.requirePayment(t, plain)
	compressed := []string{"Content-Length", "Content-Encoding", "Vary"}
	require.Equal(t, first.lasting(compressed...), plain.lasting(compressed...))
	for _, retry := range []reply{same, plain} {
		require.True(t, retry.replayed())
		s.requireOutcome(t, retry, idempotency.OutcomeReplayed)
		require.NotEqual(t, first.header["X-Request-Id"], retry.header["X-Request-Id"])
	}

	stranger := s.ask(t, ask{key: key, stranger: true}, authentication)
	require.Equal(t, 401, stranger.status)
	reuse := s.ask(t, ask{key: key, body: "9900"}, guarding)
	require.Equal(t, 409, reuse.status)
	require.Contains(t, reuse.body, "key-reused")
	s.requireOutcome(t, reuse, idempotency.OutcomeKeyReused)
	for _, r := range []reply{stranger, reuse} {
		require.NotContains(t, r.body, "charge")
		require.NotContains(t, r.header, marker)
	}
	require.Equal(t, 1, total(first, same, plain, stranger, reuse))
}

// refuses sends requests that must not reach the guard.
func (s orderedService) refuses(t *testing.T) {
	t.Helper()
	preflight := s.ask(t, ask{method: http.MethodOptions, stranger: true}, crossOrigin)
	require.Equal(t, 200, preflight.status)
	allowed := canonical(preflight.header["Access-Control-Allow-Headers"])
	require.Equal(t, []string{"Authorization, Idempotency-Key"}, allowed)
	require.NotContains(t, preflight.header, marker)
	require.Empty(t, preflight.settled)
	require.Zero(t, total(preflight))
}

func canonical(lines []string) []string {
	for i, l := range lines {
		names := strings.Split(l, ", ")
		for j, name := range names {
			names[j] = http.CanonicalHeaderKey(name)
		}
		lines[i] = strings.Join(names, ", ")
	}
	return lines
}

// panics makes the handler panic once.
func (s orderedService) panics(t *testing.T) {
	t.Helper()
	key := rand.Text()
	first := s.send(t, s.service, ask{key: key, do: "panic"})
	require.Equal(t, 500, first.status)
	require.Equal(t, idempotency.OutcomeReleased, receive(t, first.settled).Outcome)
	if s.outside(accessLog, recovery) {
		require.Equal(t, []accessLine{{500, int64(len(first.raw))}}, first.lines)
	}

	retry := s.ask(t, ask{key: key}, handling)
	s.requirePayment(t, retry)
	require.False(t, retry.replayed())
	require.Equal(t, 2, total(first, retry))
}

// isLate makes the handler exceed its time: once the handler gives up, once the handler continues.
func (s orderedService) isLate(t *testing.T) {
	t.Helper()
	late := s.late(t, "give up", s.lateStatus())
	retry := s.ask(t, ask{key: late.key}, handling)
	s.requirePayment(t, retry)
	require.False(t, retry.replayed())
	require.Equal(t, 2, total(late.reply, retry))

	status := http.StatusCreated // chi's timeout cannot stop a handler that ignores its context
	if slices.Contains(s.order, deadline) {
		status = http.StatusServiceUnavailable
	}
	late = s.late(t, "finish late", status)
	retry = s.ask(t, ask{key: late.key}, guarding)
	s.requirePayment(t, retry)
	require.True(t, retry.replayed())
	require.Equal(t, 1, total(late.reply, retry))
}

func (s orderedService) lateStatus() int {
	if slices.Contains(s.order, deadline) {
		return http.StatusServiceUnavailable
	}
	return http.StatusGatewayTimeout
}

type lateReply struct {
	reply
	key string
}

// late sends a request that has too little time.
func (s orderedService) late(t *testing.T, do string, status int) lateReply {
	t.Helper()
	patience := shortly
	if slices.Contains(s.order, deadline) {
		patience = long // the timeout answers while the handler goes on
	}
	key := rand.Text()
	late := s.sendPatiently(t, s.service, ask{key: key, do: do, hurry: true}, patience)
	receive(t, late.settled)
	require.Equal(t, status, late.status, late.body)
	s.requireCORS(t, late, s.lateBy())
	return lateReply{late, key}
}

// lateBy returns the timeout of the order.
func (s orderedService) lateBy() part {
	if slices.Contains(s.order, deadline) {
		return deadline
	}
	return ctxTimeout
}

// ask sends a request that the part by answers, and checks the effects of the middlewares outside by on the answer.
func (s orderedService) ask(t *testing.T, a ask, by part) reply {
	t.Helper()
	r := s.send(t, s.service, a)
	s.requireCORS(t, r, by)
	require.Len(t, r.header["X-Request-Id"], 1)
	require.Len(t, r.header["Date"], 1)

	var lines []accessLine
	if s.outside(accessLog, by) {
		size := len(r.raw)
		if s.outside(compression, accessLog) {
			size = len(r.body)
		}
		lines = []accessLine{{int64(r.status), int64(size)}}
	}
	require.Equal(t, lines, r.lines)

	spans := 0
	for _, span := range r.spans {
		if span.SpanKind() == trace.SpanKindServer {
			spans++
		}
	}
	require.Equal(t, s.outside(tracing, by), spans == 1, "%d spans", spans)
	return r
}

// requireCORS requires that an answer has the CORS fields once if CORS is outside by, and never twice.
func (s orderedService) requireCORS(t *testing.T, r reply, by part) {
	t.Helper()
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": marker,
	} {
		switch values := r.header[name]; {
		case name == "Access-Control-Expose-Headers" && by == crossOrigin: // a preflight does not have this field
		case s.outside(crossOrigin, by) || by == crossOrigin:
			require.Equal(t, []string{want}, values, "%s %v %v", name, r.status, r.header)
		default:
			require.LessOrEqual(t, len(values), 1, name)
		}
	}
	origins := 0
	for _, line := range r.header["Vary"] {
		if line == "Origin" {
			origins++
		}
	}
	require.LessOrEqual(t, origins, 1)
}

// requirePayment requires that a client can read the handler's answer.
func (s orderedService) requirePayment(t *testing.T, r reply) {
	t.Helper()
	require.Equal(t, http.StatusCreated, r.status, r.body)
	require.Equal(t, payment, r.body)
	require.Equal(t, []string{"/payments/1"}, r.header["Location"])
	require.Equal(t, []string{"application/json"}, r.header["Content-Type"])
	if r.gzip {
		require.Equal(t, []string{"gzip"}, r.header["Content-Encoding"])
	} else {
		require.NotContains(t, r.header, "Content-Encoding")
	}
}

// requireOutcome requires that the observer got the outcome, and that one span has the outcome.
func (s orderedService) requireOutcome(t *testing.T, r reply, want idempotency.Outcome) {
	t.Helper()
	require.Equal(t, want, receive(t, r.settled).Outcome)
	told := 0
	for _, span := range r.spans {
		for _, a := range span.Attributes() {
			if a.Key == "idempotency.outcome" {
				require.Equal(t, string(want), a.Value.AsString())
				told++
			}
		}
	}
	require.Equal(t, 1, told)
}
