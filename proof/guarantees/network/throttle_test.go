package network_test

import (
	"sync"
	"time"
)

// throttle bounds how many trials run at a time. Most of them wait for a timeout, so many may. But a store that has no time
// left to answer in would be another fault than the one that is tried: then there are fewer.
type throttle struct {
	mu             sync.Mutex
	left           sync.Cond
	running, limit int
}

const (
	fewest, most = 4, 64
	slow         = storeTimeout / 4 // for requests that no fault strikes
)

func newThrottle() *throttle {
	th := &throttle{limit: most / 4}
	th.left.L = &th.mu
	return th
}

func (th *throttle) enter() {
	th.mu.Lock()
	defer th.mu.Unlock()
	for th.running >= th.limit {
		th.left.Wait()
	}
	th.running++
}

func (th *throttle) leave() {
	th.mu.Lock()
	defer th.mu.Unlock()
	th.running--
	th.left.Broadcast()
}

// note tells how long a request took that no fault strikes.
func (th *throttle) note(took time.Duration) {
	th.mu.Lock()
	defer th.mu.Unlock()
	if took > slow {
		th.limit = max(fewest, min(th.limit, th.running)-2)
		return
	}
	th.limit = min(most, th.limit+1)
	th.left.Broadcast()
}
