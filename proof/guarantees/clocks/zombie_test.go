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

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/clocks/skew"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// herd is how many server processes of one store are stopped at a time.
const herd = 6

// briefly is the lease of a process that is stopped, and how long its transactions may be silent at /re-execute.
const briefly = slowness * time.Second

// TestZombies stops server processes (SIGSTOP) with a request at every point, until their leases have lapsed and another
// process has taken over and has answered, or is still at work. Then they go on. Every second one does not even know
// that time has passed: its monotonic clock stood still, too, as that of a machine which is suspended.
func TestZombies(t *testing.T) {
	t.Parallel()
	each(t, withRows, func(t *testing.T, k kind) {
		p := newPasture(t, k)
		for round := range effort.Of(9) {
			p.round(round)
			if t.Failed() {
				return
			}
		}
		effort.Count(t, "processes stopped", p.stops)
		effort.Count(t, "requests in them", p.requests)
		effort.Count(t, "effects fenced by attempt", p.ledger.fenced)
		for status, n := range p.answers {
			effort.Count(t, "answered "+status, n)
		}
	})
}

// pasture is where zombies are made of the processes of a store.
type pasture struct {
	*service
	t      *testing.T
	asleep []time.Duration // how far the monotonic clocks of the processes are behind
	heir   child           // another process

	stops, requests int
	answers         map[string]int
}

func newPasture(t *testing.T, k kind) *pasture {
	p := &pasture{service: newService(t, k), t: t, asleep: make([]time.Duration, herd), answers: map[string]int{}}
	for range herd {
		p.run(briefly, briefly)
	}
	p.heir = p.start(config{Lease: 5 * time.Minute})
	return p
}

// zombie is a request that stands still at a point when its process is stopped.
type zombie struct {
	key, point, path string
	suspended        bool // with its process
	overtaken        bool // while it stands still
	heirWorks        bool // when it goes on
	toBeTold         bool // that it has lost its claim, while its handler runs
	url              string
	answer           reply
	heir             reply
	heard            chan struct{} // closed when its client has the answer
	heirHeard        chan struct{}
}

func (p *pasture) round(n int) {
	all := p.populate(n)
	for _, z := range all {
		go p.send(z)
	}
	for _, z := range all {
		p.ledger.awaitStanding(z.key)
	}
	p.stop()
	since := time.Now()
	parallel(all, p.succeed)
	p.sleep(since)
	before := p.snapshot()
	for _, z := range all {
		p.ledger.release(z.key)
	}
	for _, process := range p.processes {
		process.resume(p.t)
	}
	for _, z := range all {
		<-z.heard
	}
	p.requireUntouched(all, before, p.snapshot())
	for _, z := range all {
		if z.heirWorks {
			p.ledger.release(z.key + " heir")
		}
	}
	parallel(all, func(z *zombie) {
		<-z.heirHeard
		p.judge(z)
	})
	for _, z := range all {
		p.answers[z.sort()]++
	}
	p.requests += len(all)
}

// populate makes a zombie at each point in every process, for each policy.
func (p *pasture) populate(round int) (all []*zombie) {
	for i, process := range p.processes {
		for n, point := range p.server.kind.points() {
			for sort, path := range []string{"/refuse", "/re-execute"} {
				z := &zombie{
					key: fmt.Sprintf("%d-%d-%s-%d", round, i, strings.ReplaceAll(point, " ", "-"), sort), point: point, path: path,
					suspended: i%2 == 1, url: process.url + path,
					heard: make(chan struct{}), heirHeard: make(chan struct{}),
				}
				z.overtaken = path == "/re-execute" && point != "completed"
				z.heirWorks = z.overtaken && (round+i/2+n)%2 == 0 // by turns
				lapsed := z.overtaken || !z.suspended
				z.toBeTold = lapsed && (strings.HasSuffix(point, "the effect") || point == "renewing" || point == inTransaction)
				all = append(all, z)
			}
		}
	}
	return all
}

func parallel(all []*zombie, do func(*zombie)) {
	var running sync.WaitGroup
	for _, z := range all {
		running.Go(func() { do(z) })
	}
	running.Wait()
}

// send sends the request until it has stood still.
func (p *pasture) send(z *zombie) {
	defer close(z.heard)
	header := map[string]string{"Point": z.point, "Visitor": z.key}
	if z.toBeTold {
		header["Await"] = "yes"
	}
	for !p.ledger.stands(z.key) && !p.t.Failed() { // it may be refused before, by a slow store
		z.answer = p.ask(z.url, z.key, header)
	}
}

func (p *pasture) stop() {
	for _, process := range p.processes {
		process.stop(p.t)
		p.stops++
	}
}

// succeed has another process answer the request, or work on it, as far as that may be.
func (p *pasture) succeed(z *zombie) {
	header := map[string]string{}
	if z.heirWorks {
		header = map[string]string{"Point": "after the effect", "Visitor": z.key + " heir"}
	}
	ask := func() {
		defer close(z.heirHeard)
		for {
			z.heir = p.ask(p.heir.url+z.path, z.key, header)
			if z.heir.status == http.StatusCreated || z.heir.says("outcome-unknown") || p.t.Failed() {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	if z.heirWorks {
		go ask()
		p.ledger.awaitStanding(z.key + " heir")
	} else {
		ask()
	}
}

// sleep waits until the processes have been stopped for a second at least. The monotonic clocks of every second one are
// set back by the whole seconds.
func (p *pasture) sleep(since time.Time) {
	time.Sleep(time.Until(since.Add(time.Second)))
	for whole := time.Since(since).Truncate(time.Second); time.Since(since)-whole > briefly/4; whole += time.Second {
		time.Sleep(time.Until(since.Add(whole + time.Second)))
	}
	for i, process := range p.processes {
		if i%2 == 1 {
			p.asleep[i] += time.Since(since).Truncate(time.Second)
			process.clock.shift(skew.Monotonic, -p.asleep[i])
		}
	}
}

// requireUntouched compares the records before the zombies went on, and after.
func (p *pasture) requireUntouched(all []*zombie, before, after map[string]string) {
	p.t.Helper()
	for _, z := range all {
		if z.path == "/re-execute" {
			name := p.server.recordOf(z.path, z.key)
			require.Equal(p.t, before[name], after[name], "%+v", z)
			require.NotEmpty(p.t, before[name], "no record of %+v", z)
		}
	}
}

// judge asks both processes for the answer, and compares it with all that was answered before.
func (p *pasture) judge(z *zombie) {
	final := p.final(p.heir.url+z.path, z.key, nil)
	assert.Equal(p.t, final, p.final(z.url, z.key, nil), "%+v", z)
	for who, r := range map[string]reply{"zombie": z.answer, "heir": z.heir} {
		switch {
		case r.status == http.StatusCreated:
			assert.Equal(p.t, final, r.body, "%s of %+v", who, z)
		case r.says("in-progress"):
			assert.NotEmpty(p.t, r.retry, "%s of %+v", who, z)
		case r.says("outcome-unknown"):
			assert.Equal(p.t, "heir/refuse", who+z.path, "%s of %+v", who, z)
		case r.handled: // its own failure
			assert.Equal(p.t, "zombie", who, "%+v", z)
			assert.True(p.t, z.point == "releasing" || p.server.kind.rows, "%+v", z)
		default:
			assert.Fail(p.t, "another answer", "%s of %+v", who, z)
		}
	}
	if z.overtaken {
		assert.NotEqual(p.t, http.StatusCreated, z.answer.status, "%+v", z)
	}
	if z.toBeTold {
		p.ledger.mu.Lock()
		assert.Equal(p.t, idempotency.ErrClaimLost.Error(), p.ledger.told[z.key], "%+v", z)
		p.ledger.mu.Unlock()
	}
	p.judgeEffects(z, final)
}

// judgeEffects counts the effects. Only a claim that has lapsed after its effect lets another one happen, unless it is a row.
func (p *pasture) judgeEffects(z *zombie, final string) {
	effects := p.effects(z.key)
	doubled := z.overtaken && !p.server.kind.rows && (z.point == "after the effect" || z.point == "completing")
	want := 1
	if doubled {
		want = 2
	}
	if assert.Len(p.t, effects, want, "%+v", z) {
		assert.Equal(p.t, final, effects[len(effects)-1], "%+v", z)
	}
}

// sort says what kind of answer the client of a zombie got.
func (z *zombie) sort() string {
	switch {
	case z.answer.says("in-progress"):
		return "in-progress"
	case z.answer.status == http.StatusCreated:
		return "with what is stored"
	}
	return "by the failing handler"
}
