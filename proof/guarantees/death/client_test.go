package death_test

import (
	"crypto/rand"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idempotency-go/idempotency/proof/guarantees/death"
)

const (
	pairs    = 32              // of clients
	patience = 2 * time.Minute // for the final answer to a key
)

// crowd are clients that send requests, in pairs that share a key, and retry until they have a final answer.
type crowd struct {
	fleet    *fleet
	unharmed bool // no other death is to interrupt the retries of a request that has killed its server
	client   http.Client
	once     http.Client  // never sends again by itself
	lost     atomic.Int64 // requests without an answer

	mu     sync.Mutex
	trials []*trial
}

// trial is what became of one key.
type trial struct {
	key string

	mu      sync.Mutex
	answers map[string]int // whole ones with the status 201
	unknown int            // answers that nobody knows the outcome
	late    bool           // an attempt was not recorded in time, or has outlived its lease
	faults  []string
}

func (t *trial) fault(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, fmt.Sprintf(format, args...))
}

func newCrowd(f *fleet, unharmed bool) *crowd {
	c := &crowd{fleet: f, unharmed: unharmed}
	c.client = http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * pairs}}
	c.once = http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
	return c
}

// send has all pairs send requests until enough servers have died.
func (c *crowd) send() {
	var clients sync.WaitGroup
	for range pairs {
		clients.Go(func() {
			for {
				select {
				case o := <-c.fleet.orders:
					c.obey(o)
				case <-c.fleet.enough:
					return
				}
			}
		})
	}
	clients.Wait()
	c.client.CloseIdleConnections()
}

func (c *crowd) newTrial() *trial {
	t := &trial{key: rand.Text(), answers: make(map[string]int)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trials = append(c.trials, t)
	return t
}

// obey sends a request that kills its server, and then has a pair retry it.
func (c *crowd) obey(o order) {
	t := c.newTrial()
	if o.point == "" {
		c.insist(t, false)
		return
	}
	if o.point == death.Replaying || o.point == death.HalfReplayed || o.point == death.Replayed {
		c.until(t, o.seat, c.unharmed)
	}
	header := http.Header{death.HeaderDie: {string(o.point)}}
	if o.point == death.AtRandom {
		header.Set(death.HeaderAfter, randomDelay().String())
	}
	if got := c.post(&c.once, t, o.seat, header); !got.endsLife(o.point) {
		o.lives <- struct{}{}
	}
	c.insist(t, c.unharmed)
}

// randomDelay is now and then shorter than it takes a server to start, and seldom longer than a request takes.
func randomDelay() time.Duration {
	longest := []time.Duration{300 * time.Microsecond, 3 * time.Millisecond, 15 * time.Millisecond}
	return mathrand.N(longest[mathrand.N(len(longest))])
}

// insist has two clients at once send a request, one to each server, until both have the final answer. Then it asks for that
// once more.
func (c *crowd) insist(t *trial, unharmed bool) {
	var clients sync.WaitGroup
	var statuses [2]int
	for seat := range c.fleet.seats {
		clients.Go(func() { statuses[seat] = c.until(t, seat, unharmed) })
	}
	clients.Wait()
	last := c.until(t, mathrand.N(len(statuses)), unharmed)
	if slices.Contains(statuses[:], http.StatusCreated) && last != http.StatusCreated {
		t.fault("answered with %d, and then with %d", statuses, last)
	}
}

// until sends a request to a server until it has its final answer, whose status it returns.
func (c *crowd) until(t *trial, seat int, unharmed bool) int {
	header := http.Header{}
	if unharmed {
		header.Set(death.HeaderUnharmed, "true")
	}
	for began := time.Now(); time.Since(began) < patience; {
		if got := c.post(&c.client, t, seat, header); got.final {
			return got.status
		}
		time.Sleep(mathrand.N(100 * time.Millisecond)) // what clients do between retries
	}
	t.fault("no final answer after %v", patience)
	return 0
}

// answer is what a client has got.
type answer struct {
	status   int // zero if no whole answer came
	replayed bool
	final    bool
}

// endsLife reports whether the server dies that was told to at the point. The client gets the whole answer before if the point
// is after it.
func (a answer) endsLife(point death.Point) bool {
	switch {
	case a.status == 0:
		return true
	case !a.final || a.status != http.StatusCreated:
		return false
	}
	return point == death.Answered && !a.replayed || point == death.Replayed && a.replayed
}

// post sends one request, and keeps what it is answered.
func (c *crowd) post(client *http.Client, t *trial, seat int, header http.Header) answer {
	r, err := http.NewRequest(http.MethodPost, "http://"+c.fleet.seats[seat].addr+"/payments", strings.NewReader(`{"amount": 12}`))
	if err != nil {
		panic(err)
	}
	r.Header = header.Clone()
	r.Header.Set("Idempotency-Key", t.key)
	resp, err := client.Do(r)
	if err != nil {
		c.lost.Add(1)
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.lost.Add(1)
		return answer{}
	}
	return answer{resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", t.keep(resp, string(body))}
}

// keep keeps an answer, and reports whether it is final.
func (t *trial) keep(resp *http.Response, body string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	unrecorded := resp.Header.Get(death.HeaderUnrecorded) != ""
	t.late = t.late || unrecorded
	conflict := resp.StatusCode == http.StatusConflict
	switch {
	case resp.StatusCode == http.StatusCreated && !unrecorded:
		t.answers[body]++
		return true
	case conflict && strings.Contains(body, "outcome-unknown"):
		t.unknown++
		return true
	case conflict && strings.Contains(body, "in-progress"), resp.StatusCode == http.StatusServiceUnavailable,
		resp.StatusCode == http.StatusCreated:
		return false
	}
	t.faults = append(t.faults, fmt.Sprintf("an answer that nobody expects: %d %s", resp.StatusCode, body))
	return true
}
