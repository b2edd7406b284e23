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
	name    string
	cold    bool // the server has no connection yet
	servers int  // zero means one
	crowded bool // several requests are under way at once
	crashed bool // an earlier attempt has not ended
	basic   bool // the same for all variants of a store
	staged  bool // only Redis knows a difference

	refusable bool // differs with Refuse

	lease   time.Duration
	wait    time.Duration
	status  int // of the answer; zero means 201
	size    int // of the answer
	fails   int // the first runs of the handler that fail, without effect
	prepare func(*trial)
	during  func(*trial, *http.Request) // within the handler
	play    func(*trial) answer
}

// shortLease is renewed after a third of it, and may lapse if the store is out of order for most of it.
const shortLease = 4 * time.Second

var scenarios = []scenario{
	{name: "first from cold", cold: true, basic: true, play: askOne},
	{name: "first", refusable: true, play: askOne},
	{name: "first of 4 KiB", size: 4 << 10, staged: true, play: askOne},
	{name: "first of 200 KiB", basic: true, size: 200 << 10, play: askOne},
	{name: "replay", prepare: inOtherProcess, play: askOne},
	{name: "replay of 200 KiB", basic: true, size: 200 << 10, prepare: inOtherProcess, play: askOne},
	{name: "refusal", status: http.StatusPaymentRequired, play: askOne},
	{name: "released", refusable: true, fails: 1, lease: shortLease, play: askOne},
	{name: "crashed", refusable: true, crashed: true, prepare: crash, play: askOne},
	{name: "in progress", servers: 2, crowded: true, wait: 10 * time.Second, during: awaitGate, play: askBoth},
	{name: "renewal", refusable: true, lease: shortLease, during: awaitRenewal, play: askOne},
}

// serve is the handler of all processes.
func (tr *trial) serve(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	if key != tr.key {
		_ = tr.effects.add(r.Context(), key)
		return
	}
	run, began := tr.runs.Add(1), time.Now()
	tr.start.Do(func() { close(tr.started) })
	if tr.during != nil {
		tr.during(tr, r)
	}
	err := r.Context().Err()
	switch {
	case run <= int64(tr.fails):
		err = errors.New("one of the first runs")
	case err == nil:
		err = tr.act(r, began)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(max(tr.status, http.StatusCreated))
	_, _ = fmt.Fprint(w, "run ", run, strings.Repeat("x", tr.size))
}

func askOne(tr *trial) answer { return tr.processes[0].settle(tr.key) }

// inOtherProcess has the operation carried out by a process without faults.
func inOtherProcess(tr *trial) {
	tr.begin(tr.direct, tr.options(), tr.serve).settle(tr.key)
}

// crash leaves a claim behind whose lease has lapsed.
func crash(tr *trial) {
	opts := tr.options()
	opts.Lease, opts.Abandoned = storeTimeout, idempotency.Refuse
	p := tr.begin(tr.direct, opts, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	require.Eventually(tr, func() bool {
		resp, err := p.server.Client().Do(p.request(tr.key))
		if err == nil {
			resp.Body.Close()
		}
		record, claim, err := p.store.again(tr.direct)
		require.NoError(tr, err)
		require.Nil(tr, claim)
		return record.LeaseLeft <= 0
	}, patience, 10*time.Millisecond)
}

// awaitGate goes on when the other process has asked for the key.
func awaitGate(tr *trial, r *http.Request) {
	select {
	case <-tr.gate:
	case <-r.Context().Done():
	}
}

// askBoth has a second process ask while the first one works.
func askBoth(tr *trial) answer {
	first := tr.settleBeside(0)
	select {
	case <-tr.started:
	case <-first: // only if it has failed
		return answer{}
	}
	before, began := tr.proxy.Flights(), time.Now()
	second := tr.settleBeside(1)
	for tr.proxy.Flights() < before+4 && time.Since(began) < 2*storeTimeout {
		time.Sleep(time.Millisecond)
	}
	close(tr.gate)
	final := <-first
	require.Equal(tr, final, <-second)
	return final
}

// settleBeside settles the key by a process, beside what else is done.
func (tr *trial) settleBeside(process int) <-chan answer {
	final := make(chan answer, 1)
	go func() {
		defer close(final)
		final <- tr.processes[process].settle(tr.key)
	}()
	return final
}

// awaitRenewal goes on when the lease was renewed.
func awaitRenewal(tr *trial, r *http.Request) {
	for least := tr.lease; r.Context().Err() == nil; time.Sleep(20 * time.Millisecond) {
		record, _, err := tr.processes[0].store.again(tr.direct)
		if err != nil || record.LeaseLeft > least {
			return
		}
		least = record.LeaseLeft
	}
}
