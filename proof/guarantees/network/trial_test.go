package network_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

const (
	storeTimeout = 700 * time.Millisecond
	outage       = 900 * time.Millisecond // longer than any step of a store
	longLease    = 2 * time.Minute        // which does not lapse
	patience     = 40 * time.Second       // so soon has every key an answer, whatever happens
	pause        = 200 * time.Millisecond // of a client, before it tries again
)

// trial is a scenario that runs once, with one fault or none.
type trial struct {
	testing.TB
	*backend
	scenario
	policy idempotency.Abandoned
	key    string
	proxy  *servertest.Proxy

	processes []*process
	runs      atomic.Int64 // of the handler
	started   chan struct{}
	start     sync.Once
	gate      chan struct{} // closed when the handler may go on
	effect    lastEffect
	first     atomic.Bool // the next request is the first one that is played

	inVain atomic.Int64 // requests that were to be repeated
}

// process stands for a process with a server: it shares nothing with others.
type process struct {
	trial      *trial
	store      *noted
	middleware *idempotency.Middleware
	server     *httptest.Server
}

// begin puts handler behind a middleware with the store.
func (tr *trial) begin(store idempotency.Store, opts idempotency.Options, handler http.HandlerFunc) *process {
	p := &process{trial: tr, store: &noted{Store: store}}
	opts.StoreTimeout = storeTimeout
	opts.Logger = slog.New(slog.DiscardHandler)
	var err error
	p.middleware, err = idempotency.New(p.store, idempotency.SingleUser, opts)
	require.NoError(tr, err)
	p.server = httptest.NewServer(p.middleware.Handler(withPool(store, handler)))
	tr.Cleanup(p.server.Close)
	return p
}

// answer is what a client got.
type answer struct {
	status int
	body   string
}

// problem returns the name of a refusal, and nothing for an answer of the handler.
func (a answer) problem() string {
	var problem struct{ Type string }
	if json.Unmarshal([]byte(a.body), &problem) != nil {
		return ""
	}
	_, name, _ := strings.Cut(problem.Type, "#")
	return name
}

func (p *process) request(key string) *http.Request {
	r, err := http.NewRequest(http.MethodPost, p.server.URL+"/payments", strings.NewReader("amount=1"))
	require.NoError(p.trial, err)
	r.GetBody = nil // else the transport would repeat it
	r.Header.Set("Idempotency-Key", key)
	return r
}

// ask sends a request once.
func (p *process) ask(key string) answer {
	resp, err := p.server.Client().Do(p.request(key))
	require.NoError(p.trial, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.trial, err)
	return answer{resp.StatusCode, string(body)}
}

// settle repeats a request until it has an answer that is final.
func (p *process) settle(key string) answer {
	tr := p.trial
	end := time.Now().Add(patience)
	for unknown := (time.Time{}); ; {
		first := tr.first.Swap(false)
		a := p.ask(key)
		problem := a.problem()
		if problem == "outcome-unknown" && unknown.IsZero() {
			unknown = time.Now()
		}
		switch {
		case problem == "" && a.status < 500, problem == "outcome-unknown" && tr.isFinal(time.Since(unknown)):
			return a
		case problem == "in-progress":
			require.False(tr, first && !tr.crowded, "refused because of a claim of its own")
		case problem != "outcome-unknown":
			require.GreaterOrEqual(tr, a.status, 500, a.body)
		}
		require.Less(tr, time.Now(), end, "no answer but %v", a)
		tr.inVain.Add(1)
		time.Sleep(pause)
	}
}

// isFinal reports whether the outcome will stay unknown, if that has been so for a while. With Refuse it does after a
// crash, or if a claim could not be released behind a handler that has failed.
func (tr *trial) isFinal(unknownFor time.Duration) bool {
	return tr.policy == idempotency.Refuse && (tr.crashed || (tr.fails > 0 || tr.rows) && unknownFor > 2*storeTimeout)
}

// options returns the settings of a process.
func (tr *trial) options() idempotency.Options {
	lease := longLease
	switch {
	case tr.lease > 0:
		lease = tr.lease
	case tr.rows: // the handler may fail, and then the release
		lease = shortLease
	}
	return idempotency.Options{Lease: lease, Abandoned: tr.policy, Wait: tr.wait}
}

// run prepares the scenario, and plays it while the rule is in force. It returns how many flights and strikes there were.
func (tr *trial) run(rule servertest.Rule) (flights, strikes int) {
	proxy, connect := tr.behind(tr)
	tr.proxy, tr.started, tr.gate = proxy, make(chan struct{}), make(chan struct{})
	for range max(1, tr.servers) {
		tr.processes = append(tr.processes, tr.begin(connect(tr), tr.options(), tr.serve))
	}
	if !tr.cold {
		for _, p := range tr.processes {
			began := time.Now()
			p.settle("warm-" + tr.key)
			trialsOfAll.note(time.Since(began))
		}
	}
	if tr.prepare != nil {
		tr.prepare(tr)
	}
	before := proxy.Flights()
	proxy.Inject(rule)
	tr.first.Store(true)
	final := tr.play(tr)
	flights, strikes = proxy.Flights()-before, proxy.Strikes()
	proxy.Release()
	tr.requireSettled(final)
	proxy.Close() // else pgx waits for sessions that fell silent
	return flights, strikes
}

// requireSettled checks that everybody gets the same answer, and that nothing is left.
func (tr *trial) requireSettled(final answer) {
	if final.problem() != "" { // what was held may have let the key go
		final = tr.processes[0].settle(tr.key)
	}
	for _, p := range tr.processes {
		if again := p.settle(tr.key); tr.effect.repeated() == 0 {
			require.Equal(tr, final, again, "another answer")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, p := range tr.processes {
		require.NoError(tr, p.middleware.Shutdown(ctx))
	}
	effects := tr.effects.count(tr, tr.key)
	if final.problem() != "" {
		require.LessOrEqual(tr, effects, 1)
		return
	}
	require.Equal(tr, 1+tr.effect.repeated(), effects, "effects of %d runs, with the answer %d", tr.runs.Load(), final.status)
	record, claim, err := tr.processes[0].store.again(tr.direct)
	require.NoError(tr, err)
	require.Nil(tr, claim)
	require.NotNil(tr, record.Response, "no answer is stored: %+v", record)
}

// noted remembers what was asked last.
type noted struct {
	idempotency.Store
	mu      sync.Mutex
	key     idempotency.Key
	request idempotency.ClaimRequest
}

func (n *noted) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	n.mu.Lock()
	n.key, n.request = key, request
	n.mu.Unlock()
	return n.Store.Begin(ctx, key, request)
}

// again asks another store the same, but for taking over what was abandoned.
func (n *noted) again(store idempotency.Store) (idempotency.Record, idempotency.Claim, error) {
	n.mu.Lock()
	key, request := n.key, n.request
	n.mu.Unlock()
	request.TakeOver = false
	return store.Begin(context.Background(), key, request)
}

func (n *noted) Unwrap() idempotency.Store { return n.Store }
