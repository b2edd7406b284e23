package benchmark

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// header is that of every entry.
var header = idempotency.NewFields(http.Header{
	"Content-Type": contentType, "Location": location, "X-Request-Id": requestID, "Cache-Control": cacheControl,
	"Content-Length": {strconv.Itoa(Small.Response)},
})

// entry is one request as a store sees it. Its strings are nobody else's, as those of a request are.
func entry(id string) (idempotency.Key, idempotency.ClaimRequest, idempotency.Response) {
	const user, endpoint = "user-0123456789", "POST " + path
	all := strings.Clone(user + endpoint + id) // in one piece, as the middleware makes it
	key := idempotency.Key{User: all[:len(user)], Endpoint: all[len(user):][:len(endpoint)], ID: all[len(user)+len(endpoint):]}
	attempt := idempotency.ClaimRequest{Fingerprint: sha256.Sum256([]byte(id)), Lease: lease, TTL: ttl, TakeOver: true}
	resp := idempotency.Response{
		Status: http.StatusCreated, Header: idempotency.Fields(strings.Clone(string(header))), Body: Small.answer(),
	}
	return key, attempt, resp
}

// completions measures the completion of n operations in Redis, one after another, for the library. For BlindSet it
// measures a SET of as many bytes.
func completions(b *Backends, subject *Subject, work Work, n int) (cost Cost, err error) {
	ctx := context.Background()
	defer func() { err = errors.Join(err, b.Redis.FlushAll(ctx).Err()) }()
	keys := NewKeys(n)
	if subject == BlindSet {
		value := append([]byte(rawHead), work.answer()...)
		return costOf(b, n, each(keys, func(id string) error { return b.Redis.Set(ctx, id, value, ttl).Err() }))
	}
	store := redisStore(b)
	claims := make(map[string]idempotency.Claim, n)
	for _, id := range append(NewKeys(1), keys...) {
		key, attempt, _ := entry(id)
		if _, claims[id], err = store.Begin(ctx, key, attempt); err != nil {
			return Cost{}, err
		}
	}
	_, _, resp := entry("")
	resp.Body = work.answer()
	complete := func(id string) error { return claims[id].Complete(ctx, resp, ttl) }
	if cost, err = costOf(b, n, each(keys, complete)); err != nil {
		return Cost{}, err
	}
	return cost, each(keys, func(id string) error { return kept(ctx, store, id, resp) })()
}

// each returns a function that calls step for every key.
func each(keys []string, step func(string) error) func() error {
	return func() error {
		for _, key := range keys {
			if err := step(key); err != nil {
				return err
			}
		}
		return nil
	}
}

// execute takes an entry through claim and completion.
func execute(ctx context.Context, store idempotency.Store, id string) error {
	key, attempt, resp := entry(id)
	_, claim, err := store.Begin(ctx, key, attempt)
	if err != nil {
		return err
	}
	if claim == nil {
		return fmt.Errorf("benchmark: key %s is in use", id)
	}
	return claim.Complete(ctx, resp, ttl)
}

// kept returns an error unless the store has the answer to an entry.
func kept(ctx context.Context, store idempotency.Store, id string, want idempotency.Response) error {
	key, attempt, _ := entry(id)
	record, _, err := store.Begin(ctx, key, attempt)
	if err != nil {
		return err
	}
	if record.Response == nil || !bytes.Equal(record.Response.Body, want.Body) {
		return fmt.Errorf("benchmark: key %s has another answer, or none", id)
	}
	return nil
}
