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
	pairCount     = 32              // pairs of clients
	answerTimeout = 2 * time.Minute // bounds the wait for the final answer to a key
)

// clientGroup is the clients of a run. They send requests in pairs that share a key, and retry until they have a final answer.
type clientGroup struct {
	servers         *serverGroup
	protectsRetries bool // no other death interrupts the retries of a request that has killed its server
	reusingClient   http.Client
	singleUseClient http.Client  // never repeats a request by itself
	unanswered      atomic.Int64 // requests without an answer

	mu     sync.Mutex
	trials []*trial
}

// trial has the answers and faults of one key.
type trial struct {
	key string

	mu              sync.Mutex
	countByAnswer   map[string]int // complete answers with status 201, by body
	unknownOutcomes int            // answers that report an unknown outcome
	isLate          bool           // an attempt was not recorded in time, or has outlived its lease
	faults          []string
}

func (t *trial) addFault(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults = append(t.faults, fmt.Sprintf(format, args...))
}

func newClientGroup(servers *serverGroup, protectsRetries bool) *clientGroup {
	c := &clientGroup{servers: servers, protectsRetries: protectsRetries}
	c.reusingClient = http.Client{Timeout: answerTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * pairCount}}
	c.singleUseClient = http.Client{Timeout: answerTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	return c
}

// sendUntilEnough makes all pairs send requests until enough servers have died.
func (c *clientGroup) sendUntilEnough() {
	var clients sync.WaitGroup
	for range pairCount {
		clients.Go(func() {
			for {
				select {
				case o := <-c.servers.orders:
					c.handleOrder(o)
				case <-c.servers.enoughDied:
					return
				}
			}
		})
	}
	clients.Wait()
	c.reusingClient.CloseIdleConnections()
}

func (c *clientGroup) newTrial() *trial {
	t := &trial{key: rand.Text(), countByAnswer: make(map[string]int)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trials = append(c.trials, t)
	return t
}

// handleOrder sends a request that kills its server, and then a pair retries the request.
func (c *clientGroup) handleOrder(o order) {
	t := c.newTrial()
	if o.point == "" {
		c.retryOnBothServers(t, false)
		return
	}
	if o.point == death.Replaying || o.point == death.HalfReplayed || o.point == death.Replayed {
		c.retryUntilFinal(t, o.slotIndex, c.protectsRetries)
	}
	header := http.Header{death.HeaderDie: {string(o.point)}}
	if o.point == death.AtRandom {
		header.Set(death.HeaderAfter, randomDelay().String())
	}
	if got := c.sendRequest(&c.singleUseClient, t, o.slotIndex, header); !got.impliesDeath(o.point) {
		o.survived <- struct{}{}
	}
	c.retryOnBothServers(t, c.protectsRetries)
}

// randomDelay returns a delay that is sometimes shorter than the start of a server, and rarely longer than a request.
func randomDelay() time.Duration {
	longest := []time.Duration{300 * time.Microsecond, 3 * time.Millisecond, 15 * time.Millisecond}
	return mathrand.N(longest[mathrand.N(len(longest))])
}

// retryOnBothServers makes two concurrent clients send the request, one client to each server, until both have the final answer.
// Then retryOnBothServers requests the answer once more.
func (c *clientGroup) retryOnBothServers(t *trial, unharmed bool) {
	var clients sync.WaitGroup
	var statuses [2]int
	for slotIndex := range c.servers.slots {
		clients.Go(func() { statuses[slotIndex] = c.retryUntilFinal(t, slotIndex, unharmed) })
	}
	clients.Wait()
	last := c.retryUntilFinal(t, mathrand.N(len(statuses)), unharmed)
	if slices.Contains(statuses[:], http.StatusCreated) && last != http.StatusCreated {
		t.addFault("answered with %d, and then with %d", statuses, last)
	}
}

// retryUntilFinal sends the request to the server of a slot until the answer is final, and returns the status.
func (c *clientGroup) retryUntilFinal(t *trial, slotIndex int, unharmed bool) int {
	header := http.Header{}
	if unharmed {
		header.Set(death.HeaderUnharmed, "true")
	}
	for began := time.Now(); time.Since(began) < answerTimeout; {
		if got := c.sendRequest(&c.reusingClient, t, slotIndex, header); got.isFinal {
			return got.status
		}
		time.Sleep(mathrand.N(100 * time.Millisecond)) // clients wait between retries
	}
	t.addFault("no final answer after %v", answerTimeout)
	return 0
}

// answer is the answer that a client has received.
type answer struct {
	status     int // zero: no complete answer
	isReplayed bool
	isFinal    bool
}

// impliesDeath reports whether a server that was ordered to die at point dies, given the answer of the server. If the point is
// after the answer, the client gets the complete answer before the death.
func (a answer) impliesDeath(point death.Point) bool {
	switch {
	case a.status == 0:
		return true
	case !a.isFinal || a.status != http.StatusCreated:
		return false
	}
	return point == death.Answered && !a.isReplayed || point == death.Replayed && a.isReplayed
}

// sendRequest sends one request to the server of a slot, and records the answer in t.
func (c *clientGroup) sendRequest(client *http.Client, t *trial, slotIndex int, header http.Header) answer {
	url := "http://" + c.servers.slots[slotIndex].address + "/payments"
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"amount": 12}`))
	if err != nil {
		panic(err)
	}
	r.Header = header.Clone()
	r.Header.Set("Idempotency-Key", t.key)
	resp, err := client.Do(r)
	if err != nil {
		c.unanswered.Add(1)
		return answer{}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.unanswered.Add(1)
		return answer{}
	}
	return answer{resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", t.recordAnswer(resp, string(body))}
}

// recordAnswer records an answer, and reports whether the answer is final.
func (t *trial) recordAnswer(resp *http.Response, body string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	unrecorded := resp.Header.Get(death.HeaderUnrecorded) != ""
	t.isLate = t.isLate || unrecorded
	conflict := resp.StatusCode == http.StatusConflict
	switch {
	case resp.StatusCode == http.StatusCreated && !unrecorded:
		t.countByAnswer[body]++
		return true
	case conflict && strings.Contains(body, "outcome-unknown"):
		t.unknownOutcomes++
		return true
	case conflict && strings.Contains(body, "in-progress"), resp.StatusCode == http.StatusServiceUnavailable,
		resp.StatusCode == http.StatusCreated:
		return false
	}
	t.faults = append(t.faults, fmt.Sprintf("an answer that nobody expects: %d %s", resp.StatusCode, body))
	return true
}
