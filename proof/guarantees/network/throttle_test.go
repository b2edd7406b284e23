package network_test

import (
	"sync"
	"time"
)

// throttle limits how many trials run at a time. The limit is high because most trials wait for a timeout. But an overloaded store
// would add a fault of its own to a trial, so the throttle lowers the limit when requests without a fault are slow.
type throttle struct {
	mu                        sync.Mutex
	mayEnter                  sync.Cond
	runningTrials, maxRunning int
}

const (
	minTrials, maxTrials = 4, 64
	slowRequest          = storeTimeout / 4 // for a request that no fault strikes
)

func newThrottle() *throttle {
	th := &throttle{maxRunning: maxTrials / 4}
	th.mayEnter.L = &th.mu
	return th
}

func (th *throttle) enter() {
	th.mu.Lock()
	defer th.mu.Unlock()
	for th.runningTrials >= th.maxRunning {
		th.mayEnter.Wait()
	}
	th.runningTrials++
}

func (th *throttle) leave() {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.runningTrials--
	th.mayEnter.Broadcast()
}

// noteDuration adjusts the limit to the duration of a request that no fault strikes.
func (th *throttle) noteDuration(took time.Duration) {
	th.mu.Lock()
	defer th.mu.Unlock()
	if took > slowRequest {
		th.maxRunning = max(minTrials, min(th.maxRunning, th.runningTrials)-2)
		return
	}
	th.maxRunning = min(maxTrials, th.maxRunning+1)
	th.mayEnter.Broadcast()
}
