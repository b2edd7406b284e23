//go:build linux

package clocks_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
)

// wallClockShifts are the shifts of the wall clock of a process, back to 1970 and far into the future.
var wallClockShifts = []time.Duration{
	0, 5 * time.Minute, -5 * time.Minute, 25 * time.Hour, -25 * time.Hour, 50 * 365 * 24 * time.Hour,
	-time.Duration(time.Now().Unix()) * time.Second,
}

// TestClocksOfProcesses serves the same keys in two processes whose wall clocks differ and jump all the time. The clocks must
// make no difference: each operation is executed once, even if the operation takes longer than a lease, and every client gets the
// answer.
func TestClocksOfProcesses(t *testing.T) {
	t.Parallel()
	var running sync.WaitGroup
	for _, k := range availableKinds(kindsWithRows) {
		p := &jumpingProcesses{service: newService(t, k)}
		p.addProcess(6*time.Second, time.Minute)
		p.addProcess(6*time.Second, time.Minute)
		running.Go(func() { p.sendOperations(effort.Of(200)) })
	}
	running.Wait()
}

type jumpingProcesses struct{ *service }

// sendOperations sends requests with keys different keys while the clocks jump.
func (p *jumpingProcesses) sendOperations(keys int) {
	stop, jumps := p.startJumps()
	var running sync.WaitGroup
	for i := range keys {
		running.Go(func() { p.sendOperation(i) })
		time.Sleep(5 * time.Millisecond)
	}
	running.Wait()
	close(stop)
	assert.Positive(p.t, p.misdatedAnswers.Load(), "answers by a wrong clock")
	name := p.server.kind.name
	effort.Count(p.t, "jumps with "+name, <-jumps)
	effort.Count(p.t, "operations on "+name, keys)
}

// startJumps makes the clocks of the processes jump until stop is closed, and then sends the number of jumps to jumps.
func (p *jumpingProcesses) startJumps() (stop chan struct{}, jumps chan int) {
	stop, jumps = make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				jumps <- n
				return
			case <-time.After(2 * time.Millisecond):
				p.processes[n%2].clock.setWallClock(wallClockShifts[rand.N(len(wallClockShifts))])
				n++
			}
		}
	}()
	return stop, jumps
}

// sendOperation sends requests with one key to both processes. Every tenth operation takes longer than a lease.
func (p *jumpingProcesses) sendOperation(i int) {
	key, header := fmt.Sprint(i), map[string]string{}
	if i%10 == 0 {
		header["Takes"] = "8s"
	}
	answers := make([]string, 2*len(p.processes))
	var running sync.WaitGroup
	for n := range answers {
		running.Go(func() { answers[n] = p.awaitAnswer(p.processes[n%2].url+"/re-execute", key, header) })
	}
	running.Wait()
	for _, answer := range answers {
		assert.Equal(p.t, answers[0], answer, key)
	}
	assert.Equal(p.t, answers[:1], p.readEffects(key), key)
}
