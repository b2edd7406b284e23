package network_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// scenario is a few requests with one key.
type scenario struct {
	name                  string
	startsCold            bool // the server begins without a connection to the store
	serverCount           int  // number of processes; zero means one
	hasConcurrentRequests bool // two processes get a request at the same time
	hasAbandonedAttempt   bool // an earlier attempt was abandoned
	sameForVariants       bool // variants of a store skip the scenario
	onlyForRedis          bool // other stores skip the scenario

	dependsOnPolicy bool // the scenario runs with Refuse, too

	leaseDuration time.Duration
	maxWait       time.Duration
	answerStatus  int // zero means 201
	answerSize    int // of the answer
	failingRuns   int // so many runs of the handler fail first, without an effect
	prepareTrial  func(*trial)
	duringHandler func(*trial, *http.Request) // called within the handler
	playRequests  func(*trial) answer
}

// shortLease is the lease of trials with renewals. The library renews a lease after a third, and the lease may lapse if an outage
// lasts for most of the lease.
const shortLease = 4 * time.Second

var scenarios = []scenario{
	{name: "first from cold", startsCold: true, sameForVariants: true, playRequests: settleOne},
	{name: "first", dependsOnPolicy: true, playRequests: settleOne},
	{name: "first of 4 KiB", answerSize: 4 << 10, onlyForRedis: true, playRequests: settleOne},
	{name: "first of 200 KiB", sameForVariants: true, answerSize: 200 << 10, playRequests: settleOne},
	{name: "replay", prepareTrial: settleInOtherProcess, playRequests: settleOne},
	{
		name: "replay of 200 KiB", sameForVariants: true, answerSize: 200 << 10,
		prepareTrial: settleInOtherProcess, playRequests: settleOne,
	},
	{name: "refusal", answerStatus: http.StatusPaymentRequired, playRequests: settleOne},
	{name: "released", dependsOnPolicy: true, failingRuns: 1, leaseDuration: shortLease, playRequests: settleOne},
	{name: "crashed", dependsOnPolicy: true, hasAbandonedAttempt: true, prepareTrial: abandonClaim, playRequests: settleOne},
	{
		name: "in progress", serverCount: 2, hasConcurrentRequests: true, maxWait: 10 * time.Second,
		duringHandler: awaitGate, playRequests: settleBoth,
	},
	{name: "renewal", dependsOnPolicy: true, leaseDuration: shortLease, duringHandler: awaitRenewal, playRequests: settleOne},
}

// serveRequest is the handler of all processes.
func (tr *trial) serveRequest(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if key != tr.key {
		_ = tr.effectLedger.addEffect(r.Context(), key)
		return
	}
	run, began := tr.handlerRuns.Add(1), time.Now()
	tr.closeStarted.Do(func() { close(tr.handlerStarted) })
	if tr.duringHandler != nil {
		tr.duringHandler(tr, r)
	}
	err := r.Context().Err()
	switch {
	case run <= int64(tr.failingRuns):
		err = errors.New("one of the first runs")
	case err == nil:
		err = tr.haveEffect(r, began)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(max(tr.answerStatus, http.StatusCreated))
	_, _ = fmt.Fprint(w, "run ", run, strings.Repeat("x", tr.answerSize))
}

func settleOne(tr *trial) answer { return tr.processes[0].repeatUntilFinal(tr.key) }

// settleInOtherProcess executes the operation in a process whose store has no faults.
func settleInOtherProcess(tr *trial) {
	tr.startProcess(tr.directStore, tr.buildOptions(), tr.serveRequest).repeatUntilFinal(tr.key)
}

// abandonClaim leaves a claim with a lapsed lease behind.
func abandonClaim(tr *trial) {
	opts := tr.buildOptions()
	opts.Lease, opts.Abandoned = storeTimeout, idempotency.Refuse
	p := tr.startProcess(tr.directStore, opts, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	require.Eventually(tr, func() bool {
		resp, err := p.server.Client().Do(p.newRequest(tr.key))
		if err == nil {
			resp.Body.Close()
		}
		record, claim, err := p.rememberingStore.repeatBegin(tr.directStore)
		require.NoError(tr, err)
		require.Nil(tr, claim)
		return record.LeaseLeft <= 0
	}, patience, 10*time.Millisecond)
}

// awaitGate waits until the other process has asked for the key.
func awaitGate(tr *trial, r *http.Request) {
	select {
	case <-tr.handlerGate:
	case <-r.Context().Done():
	}
}

// settleBoth sends a request to a second process while the handler of the first process runs.
func settleBoth(tr *trial) answer {
	first := tr.settleConcurrently(0)
	select {
	case <-tr.handlerStarted:
	case <-first: // only after a failure
		return answer{}
	}
	before, began := tr.proxy.Flights(), time.Now()
	second := tr.settleConcurrently(1)
	for tr.proxy.Flights() < before+4 && time.Since(began) < 2*storeTimeout {
		time.Sleep(time.Millisecond)
	}
	close(tr.handlerGate)
	final := <-first
	require.Equal(tr, final, <-second)
	return final
}

// settleConcurrently repeats the request to a process in a goroutine, until the answer is final.
func (tr *trial) settleConcurrently(process int) <-chan answer {
	final := make(chan answer, 1)
	go func() {
		defer close(final)
		final <- tr.processes[process].repeatUntilFinal(tr.key)
	}()
	return final
}

// awaitRenewal waits until the lease was renewed.
func awaitRenewal(tr *trial, r *http.Request) {
	for least := tr.leaseDuration; r.Context().Err() == nil; time.Sleep(20 * time.Millisecond) {
		record, _, err := tr.processes[0].rememberingStore.repeatBegin(tr.directStore)
		if err != nil || record.LeaseLeft > least {
			return
		}
		least = record.LeaseLeft
	}
}
