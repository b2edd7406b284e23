// Package redisconn takes the steps of a store in Redis, with whatever client of go-redis. It knows no record.
//
// A [Conn] ends each step by the deadline of its context, and repeats a step whose reply was lost. Most of its methods
// report lost: the server may have taken a try of the step that it has not answered, or may still take it. That tells who
// has failed that there may be something to undo, and who has succeeded that the client may still be about to send.
//
// What every request runs through is in this file. Why a step has failed is in failure.go.
package redisconn

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency/internal/crowd"
)

// Conn is a client and what has become of its steps so far. It is safe for concurrent use.
type Conn struct {
	client         client
	honorsDeadline bool // the client ends by the deadline of a context
	replicaCount   int
	waitSlots      chan struct{} // has one for each WAIT under way
	lacksSwap      atomic.Bool   // the server has no SET with IFEQ
	errorKinds     Errors
	poolCrowd      *crowd.Crowd
}

// New wraps client. Writes that are to be copied wait until replicas replicas have acknowledged them (the WAIT command).
//
// New fails if client cannot keep records, or cannot send WAIT over the connection that made the write.
func New(client redis.Cmdable, replicas int, kinds Errors) (*Conn, error) {
	if err := errors.Join(checkClient(client), checkReplicas(client, replicas)); err != nil {
		return nil, err
	}
	own, size := withDeadlines(client), poolSize(client)
	return &Conn{
		client: own, honorsDeadline: honorsDeadlines(own), replicaCount: replicas, waitSlots: make(chan struct{}, max(1, size/2)),
		errorKinds: kinds, poolCrowd: crowd.New(size),
	}, nil
}

// Value is an argument of a step. It counts how often it was encoded, which most clients do once they have a connection to
// write to. So it counts also what the client has sent by itself, when it has tried again.
type Value struct {
	Text         []byte
	timesEncoded atomic.Int32
}

// MarshalBinary implements [encoding.BinaryMarshaler], by which go-redis encodes what is neither text nor number.
func (v *Value) MarshalBinary() ([]byte, error) {
	v.timesEncoded.Add(1)
	return v.Text, nil
}

// String is for hooks of the client that log or trace commands.
func (v *Value) String() string { return string(v.Text) }

// Names of keys are of type any in all that follows, and hold a string: to put one into an any costs an allocation.

// SetNX gives key the value, which was not sent before, for so many milliseconds, if it has none. Otherwise held is what it
// has. Held is nil if the server has answered with an error, which a script is to find out about.
//
// SetNX asks for the reply as it is on the wire, because go-redis takes a null for a failure: to look for its kind costs
// 3 us and 23 allocations. So the client sees no error in it. With that of a script, it knows what to do, such as to
// follow a slot to another node.
func (c *Conn) SetNX(ctx context.Context, key any, value *Value, ttl any) (set bool, held []byte, lost bool, err error) {
	command := []any{"set", key, value, "nx", "get", "px", ttl}
	var reply rawReply
	lost, err = c.retryStep(ctx, func() error {
		cmd := redis.NewRawCmd(ctx, command...)
		err := c.processCommand(ctx, key, cmd)
		if err == nil {
			reply = cmd.Val()
		}
		return err
	})
	answered := int32(0)
	if err == nil || isAnswer(err) {
		answered = 1
	}
	return reply.isNull(), reply.stringValue(), lost || value.timesEncoded.Load() > answered, err
}

// Swap gives key the text for so many milliseconds, if it has the value old, and copies it. It does nothing if the server
// does not compare values. Without an error, it may also have failed by an error of the server, which a script is to find
// out about.
func (c *Conn) Swap(ctx context.Context, key any, old *Value, text []byte, ttl int64) (swapped, lost bool, err error) {
	if c.lacksSwap.Load() {
		return false, false, nil
	}
	command := []any{"set", key, text, "ifeq", old, "px", ttl}
	lost, err = c.retryStep(ctx, func() error {
		_, err := c.sendCopied(ctx, key, command)
		return err
	})
	if err == nil || !isAnswer(err) {
		return err == nil, lost, err
	}
	if redis.HasErrorPrefix(err, "syntax error") {
		c.lacksSwap.Store(true)
	}
	return false, lost, nil
}

// Script is what EVAL and EVALSHA take.
type Script struct {
	source, hash any  // strings
	extraKeys    int  // so many of its arguments are keys, the first ones; besides the key that it runs on
	requiresKeys bool // it can do nothing without them
}

// NewScript returns the script of that source.
func NewScript(source string) Script {
	return Script{source: source, hash: redis.NewScript(source).Hash()}
}

// With returns the script with so many keys among its arguments. While the slot is on its way to another server, a script
// gets at no two keys of it, unless both are on the same server: it runs without them then.
func (s Script) With(keys int) Script { return Script{s.source, s.hash, keys, false} }

// Needs is With for keys that the script cannot do without.
func (s Script) WithRequired(keys int) Script { return Script{s.source, s.hash, keys, true} }

// command returns the arguments of EVALSHA that run the script on key.
func (s Script) evalshaCommand(key any, args []any) []any {
	return append(append(make([]any, 0, 8), "evalsha", s.hash, 1+s.extraKeys, key), args...)
}

// uncached returns the arguments of EVAL for those of an EVALSHA that the server does not know.
func (s Script) evalCommand(args []any) []any {
	return slices.Concat([]any{"eval", s.source}, args[2:])
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// Run runs a script on key.
func (c *Conn) Run(ctx context.Context, script Script, key any, args ...any) (reply string, lost bool, err error) {
	return c.runScript(ctx, c.sendCommand, script, key, args)
}

// RunCopied is Run, and copies what the script writes.
func (c *Conn) RunCopied(ctx context.Context, script Script, key any, args ...any) (reply string, lost bool, err error) {
	return c.runScript(ctx, c.sendCopied, script, key, args)
}

// sender sends a command once.
type sender func(ctx context.Context, key any, args []any) (reply string, err error)

func (c *Conn) runScript(
	ctx context.Context, send sender, script Script, key any, args []any,
) (reply string, lost bool, err error) {
	command := script.evalshaCommand(key, args)
	lost, err = c.retryStep(ctx, func() (err error) {
		reply, err = script.sendScript(ctx, send, key, command)
		if script.extraKeys > 0 && !script.requiresKeys && IsSlotMoving(err) {
			reply, err = script.sendScript(ctx, send, key, script.With(0).evalshaCommand(key, args[script.extraKeys:]))
		}
		return err
	})
	return reply, lost, err
}

// sent sends a command that runs the script.
func (s Script) sendScript(ctx context.Context, send sender, key any, command []any) (reply string, err error) {
	reply, err = send(ctx, key, command)
	if isNoScript(err) {
		reply, err = send(ctx, key, s.evalCommand(command))
	}
	return reply, err
}

// RunStaged is RunCopied for a script that moves a text which is too large to pass through it. The text is put under the
// key staged, where it stays for a minute if the script does not pick it up. Both go out together.
func (c *Conn) RunStaged(
	ctx context.Context, script Script, key any, staged string, text []byte, args ...any,
) (reply string, lost bool, err error) {
	command := append(append(make([]any, 0, 8), "evalsha", script.hash, 2+script.extraKeys, key, staged), args...)
	lost, err = c.retryStep(ctx, func() (err error) {
		set := redis.NewStatusCmd(ctx, "set", staged, text, "px", time.Minute.Milliseconds())
		reply, err = c.sendBehind(ctx, key, set, command)
		if isNoScript(err) {
			reply, err = c.sendCopied(ctx, key, script.evalCommand(command))
		}
		return err
	})
	return reply, lost, err
}

// again takes a step until its reply is known. To repeat it must be harmless. The error is that of the last try that had
// a connection, if any had. Lost does not say what the client has tried by itself.
//
// The error wraps Errors.Busy if others had the whole pool when the step or one of its tries began, and the step has run
// out of time, although the server was up within the last minute: the step may have had its connection too late.
func (c *Conn) retryStep(ctx context.Context, step func() error) (lost bool, err error) {
	crowded := c.poolCrowd.Enter()
	defer c.poolCrowd.Leave()
	const most = 3
	var failure error
	for tries := 1; ; tries++ {
		err = step()
		answered, busy := err == nil || isAnswer(err) || errors.Is(err, errTooFewReplicas), errors.Is(err, c.errorKinds.Busy)
		if answered {
			c.poolCrowd.Replied()
		}
		lost = lost || !answered && !busy
		if err == nil {
			return lost, nil
		}
		crowded = crowded || c.poolCrowd.IsCrowded()
		if failure == nil || !busy {
			failure = err
		}
		if answered || ctx.Err() != nil || tries == most {
			break
		}
	}
	if crowded && isTimeout(failure) && c.poolCrowd.WasUp() {
		failure = c.errorKinds.wrapBusy(failure)
	}
	return lost, c.errorKinds.wrapError(failure)
}

// send sends a command once: by Process, since Do and EvalSha make twice as many allocations.
func (c *Conn) sendCommand(ctx context.Context, key any, args []any) (reply string, err error) {
	cmd := redis.NewStringCmd(ctx, args...)
	if err := c.processCommand(ctx, key, cmd); err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// sendCopied is send for a command whose effect is to be copied. It fails until enough replicas have it.
func (c *Conn) sendCopied(ctx context.Context, key any, args []any) (reply string, err error) {
	if c.replicaCount == 0 {
		return c.sendCommand(ctx, key, args)
	}
	return c.sendBehind(ctx, key, nil, args)
}

// process sends a command once. It returns by the end of ctx, whatever the client does. Nobody reads a command that has
// failed: the client may still be about to.
func (c *Conn) processCommand(ctx context.Context, key any, cmd redis.Cmder) error {
	if c.honorsDeadline {
		return c.wrapPoolError(ctx, key, c.client.Process(ctx, cmd))
	}
	return c.wrapPoolError(ctx, key, runUntilDone(ctx, func() error {
		if err := c.client.Process(ctx, cmd); err != nil {
			return err
		}
		return cmd.Err() // waits, if the client sends it later
	}))
}

// exec is process for what is in a pipeline.
func (c *Conn) execPipeline(ctx context.Context, key any, pipe redis.Pipeliner) error {
	send := func() error {
		_, err := pipe.Exec(ctx)
		return err
	}
	if c.honorsDeadline {
		return c.wrapPoolError(ctx, key, send())
	}
	return c.wrapPoolError(ctx, key, runUntilDone(ctx, send))
}

// inTime returns what send does, or errLate at the end of ctx.
func runUntilDone(ctx context.Context, send func() error) error {
	if err := ctx.Err(); err != nil {
		return err // before anything is sent that would be too late
	}
	sent := make(chan error, 1)
	go func() { sent <- send() }()
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return errNoReplyInTime
	}
}

// cause returns the error of a command to key. It wraps Errors.Busy if the last try had no connection to send it on. The
// client may have tried before by itself.
func (c *Conn) wrapPoolError(ctx context.Context, key any, err error) error {
	if err == nil || !isPoolWait(err) || !c.isConnected(ctx, key, err) {
		return err
	}
	return c.errorKinds.wrapBusy(err)
}

// rawReply is a reply of Redis as it is on the wire.
type rawReply []byte

func (r rawReply) isNull() bool { return string(r) == "$-1\r\n" || string(r) == "_\r\n" }

// text returns the string that is the reply, or nil if it is none. It shares the memory of the reply.
func (r rawReply) stringValue() []byte {
	head, text, ok := bytes.Cut(r, []byte("\r\n"))
	if !ok || !bytes.HasPrefix(head, []byte("$")) || len(text) < 2 {
		return nil
	}
	return text[:len(text)-2]
}
