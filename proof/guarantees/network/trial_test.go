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
	storeTimeout   = 700 * time.Millisecond
	outageDuration = 900 * time.Millisecond // longer than any step of a store
	longLease      = 2 * time.Minute        // longer than any trial
	patience       = 40 * time.Second       // every key has an answer within this time, whatever the fault
	retryPause     = 200 * time.Millisecond // between two requests of a client
)

// trial is a single run of a scenario, with at most one fault.
type trial struct {
	testing.TB
	*backend
	scenario
	policy idempotency.Abandoned
	key    string
	proxy  *servertest.Proxy

	processes      []*process
	handlerRuns    atomic.Int64 // number of runs of the handler
	handlerStarted chan struct{}
	closeStarted   sync.Once
	handlerGate    chan struct{} // closed when the handler may continue
	effectDeadline effectDeadline
	isFirstRequest atomic.Bool // the next request is the first request of the scenario

	repeatedRequests atomic.Int64 // number of requests whose answer was not final
}

// process stands for a process with a server. Two processes share nothing but the server of the store.
type process struct {
	trial            *trial
	rememberingStore *rememberingStore
	middleware       *idempotency.Middleware
	server           *httptest.Server
}

// startProcess starts a server with handler behind a middleware with store.
func (tr *trial) startProcess(store idempotency.Store, opts idempotency.Options, handler http.HandlerFunc) *process {
	p := &process{trial: tr, rememberingStore: &rememberingStore{Store: store}}
	opts.StoreTimeout = storeTimeout
	opts.Logger = slog.New(slog.DiscardHandler)
	var err error
	p.middleware, err = idempotency.New(p.rememberingStore, idempotency.SingleUser, opts)
	require.NoError(tr, err)
	p.server = httptest.NewServer(p.middleware.Handler(withPool(store, handler)))
	tr.Cleanup(p.server.Close)
	return p
}

// answer is the response to a request of a client.
type answer struct {
	status int
	body   string
}

// problemName returns the name of the problem of a refusal, or an empty string for an answer of the handler.
func (a answer) problemName() string {
	var problem struct{ Type string }
	if json.Unmarshal([]byte(a.body), &problem) != nil {
		return ""
	}
	_, name, _ := strings.Cut(problem.Type, "#")
	return name
}

func (p *process) newRequest(key string) *http.Request {
	r, err := http.NewRequest(http.MethodPost, p.server.URL+"/payments", strings.NewReader("amount=1"))
	require.NoError(p.trial, err)
	r.GetBody = nil // keeps the transport from repeating the request
	r.Header.Set("Idempotency-Key", key)
	return r
}

// sendOnce sends a request once.
func (p *process) sendOnce(key string) answer {
	resp, err := p.server.Client().Do(p.newRequest(key))
	require.NoError(p.trial, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(p.trial, err)
	return answer{resp.StatusCode, string(body)}
}

// repeatUntilFinal repeats a request until the answer is final.
func (p *process) repeatUntilFinal(key string) answer {
	tr := p.trial
	end := time.Now().Add(patience)
	for unknown := (time.Time{}); ; {
		first := tr.isFirstRequest.Swap(false)
		a := p.sendOnce(key)
		problem := a.problemName()
		if problem == "outcome-unknown" && unknown.IsZero() {
			unknown = time.Now()
		}
		switch {
		case problem == "" && a.status < 500, problem == "outcome-unknown" && tr.isFinal(time.Since(unknown)):
			return a
		case problem == "in-progress":
			require.False(tr, first && !tr.hasConcurrentRequests, "refused because of a claim of its own")
		case problem != "outcome-unknown":
			require.GreaterOrEqual(tr, a.status, 500, a.body)
		}
		require.Less(tr, time.Now(), end, "no answer but %v", a)
		tr.repeatedRequests.Add(1)
		time.Sleep(retryPause)
	}
}

// isFinal reports whether an outcome that has been unknown for unknownFor stays unknown. With Refuse, the outcome stays unknown
// after an abandoned attempt, or if the claim of a failed handler could not be released.
func (tr *trial) isFinal(unknownFor time.Duration) bool {
	mayKeepClaim := tr.failingRuns > 0 || tr.effectsAreRows
	return tr.policy == idempotency.Refuse && (tr.hasAbandonedAttempt || mayKeepClaim && unknownFor > 2*storeTimeout)
}

// buildOptions returns the options of a process.
func (tr *trial) buildOptions() idempotency.Options {
	lease := longLease
	switch {
	case tr.leaseDuration > 0:
		lease = tr.leaseDuration
	case tr.effectsAreRows: // because the handler may fail, and then the release may fail
		lease = shortLease
	}
	return idempotency.Options{Lease: lease, Abandoned: tr.policy, Wait: tr.maxWait}
}

// runWithFault prepares the scenario, and plays its requests while rule is in force. runWithFault returns the number of flights,
// and how often rule has struck.
func (tr *trial) runWithFault(rule servertest.Rule) (flights, strikes int) {
	proxy, connect := tr.startProxy(tr)
	tr.proxy, tr.handlerStarted, tr.handlerGate = proxy, make(chan struct{}), make(chan struct{})
	for range max(1, tr.serverCount) {
		tr.processes = append(tr.processes, tr.startProcess(connect(tr), tr.buildOptions(), tr.serveRequest))
	}
	if !tr.startsCold {
		for _, p := range tr.processes {
			began := time.Now()
			p.repeatUntilFinal("warm-" + tr.key)
			globalThrottle.noteDuration(time.Since(began))
		}
	}
	if tr.prepareTrial != nil {
		tr.prepareTrial(tr)
	}
	before := proxy.Flights()
	proxy.Inject(rule)
	tr.isFirstRequest.Store(true)
	final := tr.playRequests(tr)
	flights, strikes = proxy.Flights()-before, proxy.Strikes()
	proxy.Release()
	tr.requireSettled(final)
	proxy.Close() // because pgx would wait for sessions that have fallen silent
	return flights, strikes
}

// requireSettled checks that all clients get the same answer, that the number of effects is right, and that no claim is left.
func (tr *trial) requireSettled(final answer) {
	if final.problemName() != "" { // because a held message may have released the key
		final = tr.processes[0].repeatUntilFinal(tr.key)
	}
	for _, p := range tr.processes {
		if again := p.repeatUntilFinal(tr.key); tr.effectDeadline.countRepeats() == 0 {
			require.Equal(tr, final, again, "another answer")
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, p := range tr.processes {
		require.NoError(tr, p.middleware.Shutdown(ctx))
	}
	effects := tr.effectLedger.countEffects(tr, tr.key)
	if final.problemName() != "" {
		require.LessOrEqual(tr, effects, 1)
		return
	}
	require.Equal(tr, 1+tr.effectDeadline.countRepeats(), effects,
		"effects of %d runs, with the answer %d", tr.handlerRuns.Load(), final.status)
	record, claim, err := tr.processes[0].rememberingStore.repeatBegin(tr.directStore)
	require.NoError(tr, err)
	require.Nil(tr, claim)
	require.NotNil(tr, record.Response, "no answer is stored: %+v", record)
}

// rememberingStore remembers the arguments of the last Begin.
type rememberingStore struct {
	idempotency.Store
	mu          sync.Mutex
	lastKey     idempotency.Key
	lastRequest idempotency.ClaimRequest
}

func (n *rememberingStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	n.mu.Lock()
	n.lastKey, n.lastRequest = key, request
	n.mu.Unlock()
	return n.Store.Begin(ctx, key, request)
}

// repeatBegin calls Begin of store with the remembered arguments, but without TakeOver.
func (n *rememberingStore) repeatBegin(store idempotency.Store) (idempotency.Record, idempotency.Claim, error) {
	n.mu.Lock()
	key, request := n.lastKey, n.lastRequest
	n.mu.Unlock()
	request.TakeOver = false
	return store.Begin(context.Background(), key, request)
}

func (n *rememberingStore) Unwrap() idempotency.Store { return n.Store }
