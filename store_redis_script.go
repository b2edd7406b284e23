package idempotency

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/record.lua
var recordLua string

//go:embed lua/claim.lua
var claimLua string

//go:embed lua/extend.lua
var extendLua string

//go:embed lua/swap.lua
var swapLua string

//go:embed lua/complete.lua
var completeLua string

//go:embed lua/release.lua
var releaseLua string

//go:embed lua/forget.lua
var forgetLua string

//go:embed lua/remaining.lua
var remainingLua string

var (
	claimScript    = newScript(recordLua + claimLua)
	extendScript   = newScript(recordLua + extendLua)
	completeScript = newScript(swapLua + recordLua + completeLua)
	releaseScript  = newScript(recordLua + releaseLua)
	forgetScript   = newScript(recordLua + forgetLua)

	remainingScript = newScript(remainingLua)
)

// script is what EVAL and EVALSHA take.
type script struct{ source, hash any } // strings: to put one into an any costs an allocation

func newScript(source string) script {
	return script{source, redis.NewScript(source).Hash()}
}

// uncached returns the arguments of EVAL for those of an EVALSHA that the server does not know.
func (s script) uncached(args []any) []any {
	return slices.Concat([]any{"eval", s.source}, args[2:])
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// run runs a script on the key of that name until its reply is known.
func (s *RedisStore) run(ctx context.Context, script script, name any, args ...any) (reply string, err error) {
	reply, _, err = s.tryRun(ctx, s.send, script, name, args...)
	return reply, err
}

// sender sends a command once.
type sender func(ctx context.Context, name any, args []any) (reply string, err error)

// tryRun is run by a sender, and returns how many tries it took.
func (s *RedisStore) tryRun(
	ctx context.Context, send sender, script script, name any, args ...any,
) (reply string, tries int, err error) {
	command := append(append(make([]any, 0, 8), "evalsha", script.hash, 1, name), args...)
	tries, err = s.again(ctx, func() (err error) {
		reply, err = send(ctx, name, command)
		if isNoScript(err) {
			reply, err = send(ctx, name, script.uncached(command))
		}
		return err
	})
	return reply, tries, storeError(err)
}

// send sends a command once: by Process, since Do and EvalSha make twice as many allocations.
func (s *RedisStore) send(ctx context.Context, name any, args []any) (reply string, err error) {
	cmd := redis.NewStringCmd(ctx, args...)
	if err := s.process(ctx, name, cmd); err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// again takes a step until its reply is known, and returns how many tries it took. To repeat it is harmless: a record tells
// by its token what was done before. The error is that of the last try that had a connection, if any had.
//
// It wraps ErrStoreBusy if others had the whole pool when the step or one of its tries began, and the step has run out of
// time, although the server was up within the last minute: the step may have had its connection too late.
func (s *RedisStore) again(ctx context.Context, step func() error) (tries int, err error) {
	crowded := s.underWay.Add(1) > s.poolSize
	defer s.underWay.Add(-1)
	const most = 3
	var failure error
	lost := false
	for {
		tries++
		err = step()
		answered, busy := err == nil || isAnswer(err) || errors.Is(err, errNotCopied), errors.Is(err, ErrStoreBusy)
		if answered {
			s.replied.Store(int64(time.Since(s.made)))
		}
		if err == nil {
			return tries, nil
		}
		crowded = crowded || s.underWay.Load() > s.poolSize
		lost = lost || !answered
		if failure == nil || !busy {
			failure = err
		}
		if !answered && ctx.Err() == nil && tries < most {
			continue
		}
		if crowded && isTimeout(failure) && s.wasUp() {
			failure = storeBusy(failure)
		}
		if lost {
			failure = replyLost{failure}
		}
		return tries, failure
	}
}

// isAnswer reports whether err is what the server has answered.
func isAnswer(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// replyLost is the error of a step that the server may have taken nevertheless: the reply to one of its tries was lost.
type replyLost struct{ error }

func (e replyLost) Unwrap() error { return e.error }

func isReplyLost(err error) bool {
	_, ok := errors.AsType[replyLost](err)
	return ok
}

func storeError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrStoreBusy):
		return err
	case strings.Contains(err.Error(), "WRONGTYPE"):
		return fmt.Errorf("%w: %w", ErrRecordInvalid, err)
	case strings.Contains(err.Error(), "OOM command not allowed"):
		return fmt.Errorf("%w: %w", ErrStoreFull, err)
	default:
		return fmt.Errorf("idempotency: Redis: %w", err)
	}
}
