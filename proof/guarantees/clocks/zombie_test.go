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

// processCount is the number of server processes of one store that are stopped at a time.
const processCount = 6

// shortLease is the lease of a process that is stopped, and the time that its transactions at /re-execute may be idle.
const shortLease = slowness * time.Second

// TestZombies stops server processes (SIGSTOP) with a request at every stop point, until their leases have lapsed and another
// process has taken over and has answered, or is still running the handler. Then the processes continue. Every second process
// cannot even notice that time has passed, because its monotonic clock has stood still, like the clock of a suspended machine.
func TestZombies(t *testing.T) {
	t.Parallel()
	runForEachKind(t, kindsWithRows, func(t *testing.T, k kind) {
		p := newZombieRun(t, k)
		for round := range effort.Of(9) {
			p.runRound(round)
			if t.Failed() {
				return
			}
		}
		effort.Count(t, "processes stopped", p.stopCount)
		effort.Count(t, "requests in them", p.requestCount)
		effort.Count(t, "effects fenced by attempt", p.ledger.fencedEffects)
		for status, n := range p.answerCounts {
			effort.Count(t, "answered "+status, n)
		}
	})
}

// zombieRun is a run of TestZombies on one store.
type zombieRun struct {
	*service
	t         *testing.T
	clockLags []time.Duration // the delays of the monotonic clocks of the processes
	successor child           // the process that takes over

	stopCount, requestCount int
	answerCounts            map[string]int
}

func newZombieRun(t *testing.T, k kind) *zombieRun {
	p := &zombieRun{service: newService(t, k), t: t, clockLags: make([]time.Duration, processCount), answerCounts: map[string]int{}}
	for range processCount {
		p.addProcess(shortLease, shortLease)
	}
	p.successor = p.startProcess(config{Lease: 5 * time.Minute})
	return p
}

// zombie is a request that has arrived at its stop point when its process is stopped.
type zombie struct {
	key, point, path  string
	isSuspended       bool // the monotonic clock of its process stands still
	isOvertaken       bool // the successor takes over while the process is stopped
	successorWorks    bool // the handler of the successor still runs when the process continues
	learnsOfLoss      bool // the context of its handler ends with ErrClaimLost
	url               string
	answer            reply
	successorAnswer   reply
	answered          chan struct{} // closed when the client has the answer
	successorAnswered chan struct{}
}

func (p *zombieRun) runRound(n int) {
	all := p.makeZombies(n)
	for _, z := range all {
		go p.sendUntilStopped(z)
	}
	for _, z := range all {
		p.ledger.awaitArrival(z.key)
	}
	p.stopProcesses()
	since := time.Now()
	runParallel(all, p.takeOver)
	p.letLeasesLapse(since)
	before := p.readRecords()
	for _, z := range all {
		p.ledger.releaseRequest(z.key)
	}
	for _, process := range p.processes {
		process.resumeProcess(p.t)
	}
	for _, z := range all {
		<-z.answered
	}
	p.requireUnchanged(all, before, p.readRecords())
	for _, z := range all {
		if z.successorWorks {
			p.ledger.releaseRequest(z.key + " successor")
		}
	}
	runParallel(all, func(z *zombie) {
		<-z.successorAnswered
		p.checkAnswers(z)
	})
	for _, z := range all {
		p.answerCounts[z.describeAnswer()]++
	}
	p.requestCount += len(all)
}

// makeZombies returns a zombie for each stop point, process and policy.
func (p *zombieRun) makeZombies(round int) (all []*zombie) {
	for i, process := range p.processes {
		for n, point := range p.server.kind.reachablePoints() {
			for sort, path := range []string{"/refuse", "/re-execute"} {
				z := &zombie{
					key: fmt.Sprintf("%d-%d-%s-%d", round, i, strings.ReplaceAll(point, " ", "-"), sort), point: point, path: path,
					isSuspended: i%2 == 1, url: process.url + path,
					answered: make(chan struct{}), successorAnswered: make(chan struct{}),
				}
				z.isOvertaken = path == "/re-execute" && point != "completed"
				z.successorWorks = z.isOvertaken && (round+i/2+n)%2 == 0 // by turns
				lapsed := z.isOvertaken || !z.isSuspended
				z.learnsOfLoss = lapsed && (strings.HasSuffix(point, "the effect") || point == "renewing" || point == inTransaction)
				all = append(all, z)
			}
		}
	}
	return all
}

func runParallel(all []*zombie, do func(*zombie)) {
	var running sync.WaitGroup
	for _, z := range all {
		running.Go(func() { do(z) })
	}
	running.Wait()
}

// sendUntilStopped repeats the request until it has arrived at its stop point.
func (p *zombieRun) sendUntilStopped(z *zombie) {
	defer close(z.answered)
	header := map[string]string{"Point": z.point, "Request-Name": z.key}
	if z.learnsOfLoss {
		header["Await"] = "yes"
	}
	for !p.ledger.hasArrived(z.key) && !p.t.Failed() { // a slow store may fail the request before
		z.answer = p.sendOnce(z.url, z.key, header)
	}
}

func (p *zombieRun) stopProcesses() {
	for _, process := range p.processes {
		process.stopProcess(p.t)
		p.stopCount++
	}
}

// takeOver sends the request to the successor, and waits for the answer, or for the arrival of the handler at its stop point if
// z.successorWorks.
func (p *zombieRun) takeOver(z *zombie) {
	header := map[string]string{}
	if z.successorWorks {
		header = map[string]string{"Point": "after the effect", "Request-Name": z.key + " successor"}
	}
	ask := func() {
		defer close(z.successorAnswered)
		for {
			z.successorAnswer = p.sendOnce(p.successor.url+z.path, z.key, header)
			if z.successorAnswer.status == http.StatusCreated || z.successorAnswer.isProblem("outcome-unknown") || p.t.Failed() {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	if z.successorWorks {
		go ask()
		p.ledger.awaitArrival(z.key + " successor")
	} else {
		ask()
	}
}

// letLeasesLapse waits until the processes have been stopped for at least a second, and sets the monotonic clock of every second
// process back by the whole seconds since then.
func (p *zombieRun) letLeasesLapse(since time.Time) {
	time.Sleep(time.Until(since.Add(time.Second)))
	for whole := time.Since(since).Truncate(time.Second); time.Since(since)-whole > shortLease/4; whole += time.Second {
		time.Sleep(time.Until(since.Add(whole + time.Second)))
	}
	for i, process := range p.processes {
		if i%2 == 1 {
			p.clockLags[i] += time.Since(since).Truncate(time.Second)
			process.clock.shiftClock(skew.Monotonic, -p.clockLags[i])
		}
	}
}

// requireUnchanged compares the records before and after the processes have continued.
func (p *zombieRun) requireUnchanged(all []*zombie, before, after map[string]string) {
	p.t.Helper()
	for _, z := range all {
		if z.path == "/re-execute" {
			name := p.server.recordName(z.path, z.key)
			require.Equal(p.t, before[name], after[name], "%+v", z)
			require.NotEmpty(p.t, before[name], "no record of %+v", z)
		}
	}
}

// checkAnswers asks both processes for the final answer, and compares the earlier answers with it.
func (p *zombieRun) checkAnswers(z *zombie) {
	final := p.awaitAnswer(p.successor.url+z.path, z.key, nil)
	assert.Equal(p.t, final, p.awaitAnswer(z.url, z.key, nil), "%+v", z)
	for who, r := range map[string]reply{"zombie": z.answer, "successor": z.successorAnswer} {
		switch {
		case r.status == http.StatusCreated:
			assert.Equal(p.t, final, r.body, "%s of %+v", who, z)
		case r.isProblem("in-progress"):
			assert.NotEmpty(p.t, r.retryAfter, "%s of %+v", who, z)
		case r.isProblem("outcome-unknown"):
			assert.Equal(p.t, "successor/refuse", who+z.path, "%s of %+v", who, z)
		case r.isFromHandler: // the failure of its own execution
			assert.Equal(p.t, "zombie", who, "%+v", z)
			assert.True(p.t, z.point == "releasing" || p.server.kind.hasRows, "%+v", z)
		default:
			assert.Fail(p.t, "another answer", "%s of %+v", who, z)
		}
	}
	if z.isOvertaken {
		assert.NotEqual(p.t, http.StatusCreated, z.answer.status, "%+v", z)
	}
	if z.learnsOfLoss {
		p.ledger.mu.Lock()
		assert.Equal(p.t, idempotency.ErrClaimLost.Error(), p.ledger.causeByName[z.key], "%+v", z)
		p.ledger.mu.Unlock()
	}
	p.checkEffects(z, final)
}

// checkEffects counts the effects. There is a second effect only if the claim lapsed after the first effect, and if the effects are
// entries in the ledger.
func (p *zombieRun) checkEffects(z *zombie, final string) {
	effects := p.readEffects(z.key)
	doubled := z.isOvertaken && !p.server.kind.hasRows && (z.point == "after the effect" || z.point == "completing")
	want := 1
	if doubled {
		want = 2
	}
	if assert.Len(p.t, effects, want, "%+v", z) {
		assert.Equal(p.t, final, effects[len(effects)-1], "%+v", z)
	}
}

// describeAnswer returns the kind of the answer to the client of the zombie.
func (z *zombie) describeAnswer() string {
	switch {
	case z.answer.isProblem("in-progress"):
		return "in-progress"
	case z.answer.status == http.StatusCreated:
		return "with what is stored"
	}
	return "by the failing handler"
}
