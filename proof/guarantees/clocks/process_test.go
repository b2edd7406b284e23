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

// wallClocks is how far the wall clock of a process may be off, to 1970 and far into the future.
var wallClocks = []time.Duration{
	0, 5 * time.Minute, -5 * time.Minute, 25 * time.Hour, -25 * time.Hour, 50 * 365 * 24 * time.Hour,
	-time.Duration(time.Now().Unix()) * time.Second,
}

// TestClocksOfProcesses has two processes serve the same keys, whose wall clocks differ and jump all the time. It must make
// no difference: each operation is executed once, also one that takes longer than a lease, and every client gets its answer.
func TestClocksOfProcesses(t *testing.T) {
	t.Parallel()
	var running sync.WaitGroup
	for _, k := range present(withRows) {
		p := &processes{service: newService(t, k)}
		p.run(6*time.Second, time.Minute)
		p.run(6*time.Second, time.Minute)
		running.Go(func() { p.operate(effort.Of(200)) })
	}
	running.Wait()
}

type processes struct{ *service }

// operate sends requests with so many keys while the clocks jump.
func (p *processes) operate(keys int) {
	stop, jumps := p.jump()
	var running sync.WaitGroup
	for i := range keys {
		running.Go(func() { p.send(i) })
		time.Sleep(5 * time.Millisecond)
	}
	running.Wait()
	close(stop)
	assert.Positive(p.t, p.misdated.Load(), "answers by a wrong clock")
	name := p.server.kind.name
	effort.Count(p.t, "jumps with "+name, <-jumps)
	effort.Count(p.t, "operations on "+name, keys)
}

// jump lets the clocks of the processes jump until stop is closed.
func (p *processes) jump() (stop chan struct{}, jumps chan int) {
	stop, jumps = make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				jumps <- n
				return
			case <-time.After(2 * time.Millisecond):
				p.processes[n%2].clock.set(wallClocks[rand.N(len(wallClocks))])
				n++
			}
		}
	}()
	return stop, jumps
}

// send sends requests with one key to both processes. Every tenth operation takes longer than a lease.
func (p *processes) send(i int) {
	key, header := fmt.Sprint(i), map[string]string{}
	if i%10 == 0 {
		header["Takes"] = "8s"
	}
	answers := make([]string, 2*len(p.processes))
	var running sync.WaitGroup
	for n := range answers {
		running.Go(func() { answers[n] = p.final(p.processes[n%2].url+"/re-execute", key, header) })
	}
	running.Wait()
	for _, answer := range answers {
		assert.Equal(p.t, answers[0], answer, key)
	}
	assert.Equal(p.t, answers[:1], p.effects(key), key)
}
