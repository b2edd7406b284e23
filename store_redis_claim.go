package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisClaim implements Claim.
type redisClaim struct {
	store *RedisStore
	name  any // a string
	own   *runningRecord

	mu      sync.Mutex // held while the record is settled or made again
	tried   bool       // Complete was called
	settled bool       // Complete or Release has ended the claim
}

func newRedisClaim(s *RedisStore, name any, own *runningRecord) *redisClaim {
	return &redisClaim{store: s, name: name, own: own}
}

func (c *redisClaim) Context(ctx context.Context) context.Context { return ctx }

func (c *redisClaim) Extend(ctx context.Context, lease time.Duration) error {
	verdict, err := c.store.run(ctx, extendScript, c.name, c.own, c.own.expiry(lease))
	if err == nil && verdict == "missing" {
		return c.restore(ctx, lease)
	}
	return outcome(verdict, err)
}

// restore makes the record again, unless the claim has ended: nobody would renew or settle it then.
func (c *redisClaim) restore(ctx context.Context, lease time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return ErrClaimLost
	}
	return outcome(c.store.run(ctx, extendScript, c.name, c.own, c.own.expiry(lease), "again"))
}

func (c *redisClaim) Release(ctx context.Context, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(c.store.run(ctx, releaseScript, c.name, c.own, milliseconds(ttl)))
}

func (c *redisClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.settle(c.complete(ctx, resp, ttl))
}

func (c *redisClaim) complete(ctx context.Context, resp Response, ttl time.Duration) (verdict string, err error) {
	b := newBuffer(len(c.own.text) + resp.encodedSize())
	b.b = c.own.appendDone(b.b, resp)
	verdict, tries, err := c.put(ctx, b.b, ttl)
	if err == nil && tries == 1 { // else the client may still be about to send it
		b.free()
	}
	if errors.Is(err, ErrStoreFull) && len(b.b) > spareSize { // but there is room for a record without body: that of the claim
		return c.complete(ctx, resp.tombstone(), ttl)
	}
	return verdict, err
}

// What passes through Lua is copied there, at some microseconds for each kilobyte, while the server does nothing else.
const (
	inlineSize = 2 << 10 // of records that are stored by a script; larger ones are stored beside it
	spareSize  = 8 << 10 // likewise, of a server that has no memory for anything beside
)

// put stores a completed record in the place of the running one, and returns how many tries it took. What is not as it
// should be is left to the script, which knows more.
func (c *redisClaim) put(ctx context.Context, done []byte, ttl time.Duration) (verdict string, tries int, err error) {
	if !c.store.noSwap.Load() && !c.tried {
		c.tried = true // a repetition will hardly find what it is to replace
		verdict, tries, err = c.swap(ctx, done, ttl)
		if err == nil || !isAnswer(err) {
			return verdict, tries, err
		}
		if redis.HasErrorPrefix(err, "syntax error") {
			c.store.noSwap.Store(true)
		}
	}
	if len(done) > inlineSize {
		verdict, again, err := c.stage(ctx, done, ttl)
		tries += again
		full := errors.Is(err, ErrStoreFull) && len(done) <= spareSize
		if !full && !redis.HasErrorPrefix(err, "TRYAGAIN") { // the slot is moving: no script gets at two of its keys
			return verdict, tries, err
		}
	}
	verdict, again, err := c.store.tryRun(ctx, c.store.sendCopied, completeScript, c.name, c.own, done, milliseconds(ttl))
	return verdict, tries + again, err
}

// swap has the server compare and replace.
func (c *redisClaim) swap(ctx context.Context, done []byte, ttl time.Duration) (verdict string, tries int, err error) {
	command := []any{"set", c.name, done, "ifeq", c.own, "px", milliseconds(ttl)}
	tries, err = c.store.again(ctx, func() (err error) {
		verdict, err = c.store.sendCopied(ctx, c.name, command)
		return err
	})
	return verdict, tries, storeError(err)
}

// stagingTTL is how long Redis keeps a staged record that no script picks up.
const stagingTTL = time.Minute

// stage completes with a record that is too large for Lua: it is put under a key of its own, which the script renames
// if the claim still holds. Both go out together, in one round trip.
func (c *redisClaim) stage(ctx context.Context, done []byte, ttl time.Duration) (verdict string, tries int, err error) {
	staged := c.name.(string) + string(c.own.token())
	command := []any{"evalsha", completeScript.hash, 2, c.name, staged, c.own, "", milliseconds(ttl)}
	tries, err = c.store.again(ctx, func() (err error) {
		set := redis.NewStatusCmd(ctx, "set", staged, done, "px", stagingTTL.Milliseconds())
		verdict, err = c.store.sendBehind(ctx, c.name, set, command)
		if isNoScript(err) {
			verdict, err = c.store.sendCopied(ctx, c.name, completeScript.uncached(command))
		}
		return err
	})
	return verdict, tries, storeError(err)
}

// settle notes that the claim has ended, if it has.
func (c *redisClaim) settle(verdict string, err error) error {
	err = outcome(verdict, err)
	c.settled = c.settled || err == nil || errors.Is(err, ErrRestored) || errors.Is(err, ErrClaimLost)
	return err
}

// outcome translates the reply of a script, or of SET.
func outcome(verdict string, err error) error {
	if err != nil {
		return err
	}
	switch verdict {
	case "OK":
		return nil
	case "restored":
		return ErrRestored
	case "lost":
		return ErrClaimLost
	default:
		return fmt.Errorf("%w: Redis holds something else", ErrRecordInvalid)
	}
}
