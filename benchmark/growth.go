package benchmark

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Growth is what a record costs in a store that holds so many.
type Growth struct {
	Records int
	Stored  float64       // bytes of memory or disk that a record takes
	Content float64       // bytes of those that are the record's content: key, fingerprint, operation, token, answer
	First   time.Duration // to claim and complete one more
	Replay  time.Duration // to find one

	// Of stores on a server only.
	Least     float64       // bytes that the server cannot do without; of Redis only
	RoundTrip time.Duration // to the server and back, with nothing to do there

	// Of the store in memory only.
	Worst     Stall         // the slowest insert on the way to this size
	Collect   time.Duration // a garbage collection
	GCSeconds float64       // of processor time for it
}

// header is that of every entry.
var header = idempotency.NewFields(http.Header{
	"Content-Type": contentType, "Location": location, "X-Request-Id": requestID, "Cache-Control": cacheControl,
	"Content-Length": {strconv.Itoa(Small.Response)},
})

// entry is one request as a store sees it. Its strings are nobody else's, as those of a request are.
func entry(id string) (idempotency.Key, idempotency.ClaimRequest, idempotency.Response) {
	key := idempotency.Key{
		User: strings.Clone("user-0123456789"), Endpoint: strings.Clone("POST " + path), ID: strings.Clone(id),
	}
	attempt := idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte(id)), Lease: lease, TTL: ttl, TakeOver: true}
	resp := idempotency.Response{
		Status: http.StatusCreated, Header: idempotency.Fields(strings.Clone(string(header))), Body: Small.answer(),
	}
	return key, attempt, resp
}

// contentSize is what an entry holds in any store.
func contentSize(id string) float64 {
	key, _, resp := entry(id)
	const operation, token = 16, 16
	n := len(key.User) + len(key.Endpoint) + len(key.ID) + sha256.Size + operation + token + len(resp.Body)
	for name, values := range resp.Header.Header() {
		n += len(name) + len(values[0])
	}
	return float64(n)
}

// execute takes an entry through claim and completion.
func execute(ctx context.Context, store idempotency.Store, id string) error {
	return executeFor(ctx, store, id, ttl)
}

// executeFor does so with an answer that is kept for the time.
func executeFor(ctx context.Context, store idempotency.Store, id string, ttl time.Duration) error {
	key, attempt, resp := entry(id)
	attempt.Lease, attempt.TTL = min(ttl, lease), ttl
	_, claim, err := store.Begin(ctx, key, attempt)
	if err != nil {
		return err
	}
	if claim == nil {
		return fmt.Errorf("benchmark: key %s is in use", id)
	}
	return claim.Complete(ctx, resp, ttl)
}

// replay looks for an entry that was completed.
func replay(ctx context.Context, store idempotency.Store, id string) error {
	key, attempt, want := entry(id)
	record, _, err := store.Begin(ctx, key, attempt)
	if err != nil {
		return err
	}
	if record.Response == nil || len(record.Response.Body) != len(want.Body) {
		return fmt.Errorf("benchmark: key %s has no answer", id)
	}
	return nil
}

// durations are how long the repetitions of a step took.
type durations []time.Duration

func (d *durations) add(step func() error) error {
	started := time.Now()
	err := step()
	*d = append(*d, time.Since(started))
	return err
}

func (d durations) median() time.Duration { return slices.Sorted(slices.Values(d))[len(d)/2] }

// sizes returns the sizes up to most at which growth is measured.
func sizes(most int) []int {
	all := []int{10_000, 100_000, 1_000_000, 5_000_000}
	return slices.DeleteFunc(all, func(n int) bool { return n > most })
}
