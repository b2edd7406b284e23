package benchmark

import (
	"context"
	"errors"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Completion compares what it takes to store an answer in Redis with a SET of as many bytes that looks at nothing.
type Completion struct {
	Work   Work
	Ratio  float64       // of the time of Complete to that of SET
	Server time.Duration // of the server, for one Complete
}

// CompareCompletion measures answers of the size of the work.
func (b *Backends) CompareCompletion(ctx context.Context, work Work, rounds int) (Completion, error) {
	n := 64
	if work.small() {
		n = 512
	}
	value := append([]byte(rawHead), work.answer()...)
	set := func(key string) error { return b.Redis.Set(ctx, key, value, ttl).Err() }
	store := idempotency.NewRedisStore(b.Redis, idempotency.RedisOptions{})
	var server time.Duration
	comparison, err := Compare(rounds, []Contender{
		{"SET", func() (time.Duration, error) {
			defer b.Redis.FlushAll(ctx)
			return each(NewKeys(n), set)
		}},
		{"Complete", func() (time.Duration, error) {
			defer b.Redis.FlushAll(ctx)
			took, spent, err := completions(ctx, b, store, work, NewKeys(n))
			server += spent
			return took, err
		}},
	})
	if err != nil {
		return Completion{}, err
	}
	return Completion{work, comparison.Ratio(1, 0).Median, server / time.Duration(rounds)}, nil
}

// each returns how long step takes for a key.
func each(keys []string, step func(string) error) (time.Duration, error) {
	started := time.Now()
	for _, key := range keys {
		if err := step(key); err != nil {
			return 0, err
		}
	}
	return time.Since(started) / time.Duration(len(keys)), nil
}

// completions claims the keys and then completes them. It returns how long a completion takes, and how long the
// server works for it.
func completions(ctx context.Context, b *Backends, store idempotency.Store, work Work, keys []string) (
	took, server time.Duration, err error) {
	claims := make(map[string]idempotency.Claim, len(keys))
	var resp idempotency.Response
	for _, id := range keys {
		var key idempotency.Key
		var attempt idempotency.ClaimRequest
		key, attempt, resp = entry(id)
		if _, claims[id], err = store.Begin(ctx, key, attempt); err != nil {
			return 0, 0, err
		}
	}
	resp.Body = work.answer()
	if err := b.Redis.ConfigResetStat(ctx).Err(); err != nil {
		return 0, 0, err
	}
	took, err = each(keys, func(id string) error { return claims[id].Complete(ctx, resp, ttl) })
	if err != nil {
		return 0, 0, err
	}
	scripts, err1 := b.serverTime(ctx, "evalsha")
	// A large answer is set beside the script, a small one by it and so within its time.
	sets, err2 := time.Duration(0), error(nil)
	if !work.small() {
		sets, err2 = b.serverTime(ctx, "set")
	}
	return took, (scripts + sets) / time.Duration(len(keys)), errors.Join(err1, err2)
}
