// Package redisconn sends the commands of a store to Redis, through any client of go-redis. The package knows keys
// and values, but not the form of a record.
//
// A step is one atomic change or reading of a key. A [Conn] ends each step by the deadline of its context, and
// repeats a step whose reply was lost. Most methods return a result lost, which reports that the server may have
// executed a try of the step without a reply, or may still execute one. After an error, lost means that the caller
// may have something to undo. After a success, lost means that the client may still read the arguments in order to
// send them.
//
// File conn.go has the path of every request. File failure.go tells the kinds of errors apart.
package redisconn

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency/internal/bounds"
)

// Conn sends steps through a client, and remembers what the steps have shown of the server. A Conn is safe for
// concurrent use.
type Conn struct {
	client         commandClient
	honorsDeadline bool // the client returns by the deadline of a context
	replicaCount   int
	waitSlots      chan struct{} // has an element for each WAIT under way
	lacksSwap      atomic.Bool   // the server has refused SET with IFEQ as a syntax error
	errorKinds     Errors
	poolCrowd      *bounds.Crowd
}

// New wraps client. The steps of RunCopied, RunStaged and Swap wait until replicas replicas have acknowledged their
// writes (the WAIT command). All other steps return after the reply of the master.
//
// New fails if client cannot keep records, or if client cannot send WAIT over the connection that made the write.
func New(client redis.Cmdable, replicas int, kinds Errors) (*Conn, error) {
	if err := errors.Join(checkClient(client), checkReplicas(client, replicas)); err != nil {
		return nil, err
	}
	ownClient, size := withDeadlines(client), poolSize(client)
	return &Conn{
		client: ownClient, honorsDeadline: honorsDeadlines(ownClient),
		replicaCount: replicas, waitSlots: make(chan struct{}, max(1, size/2)),
		errorKinds: kinds, poolCrowd: bounds.NewCrowd(size),
	}, nil
}

// Value is an argument of a step. A Value counts how often the client has encoded its Text. Most clients encode an
// argument when they have a connection to write to, so the count includes the tries that a client repeats by itself.
type Value struct {
	Text         []byte
	timesEncoded atomic.Int32
}

// MarshalBinary implements [encoding.BinaryMarshaler], which go-redis calls for arguments that are neither text nor
// numbers.
func (v *Value) MarshalBinary() ([]byte, error) {
	v.timesEncoded.Add(1)
	return v.Text, nil
}

// String returns the text for hooks of the client that log or trace commands.
func (v *Value) String() string { return string(v.Text) }

// The functions below take the name of a key as an any that holds a string, because converting the string to any at
// each call would allocate.

// SetResult is the result of SetNX.
type SetResult struct {
	IsSet   bool   // the key had no value, and has the new value now
	Current []byte // the value that the key had; nil if IsSet, and after an error of the server
	Lost    bool   // the server may have executed a try without a reply
}

// SetNX stores value under key for ttl milliseconds, if key has no value. If the server answers with an error, both IsSet
// and Current are zero: the caller then runs a script, which succeeds or fails with a clear error. The value must be
// new, because SetNX relies on its count of encodings.
//
// SetNX reads the raw reply, because go-redis turns a null reply into an error, and to recognise this error costs 3
// µs and 23 allocations. With raw replies, the client does not see errors of the server such as a redirection to
// another node. The client does see these errors when the caller runs the script.
func (c *Conn) SetNX(ctx context.Context, key any, value *Value, ttl any) (SetResult, error) {
	command := []any{"set", key, value, "nx", "get", "px", ttl}
	var reply rawReply
	lost, err := c.retryStep(ctx, func() error {
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
	lost = lost || value.timesEncoded.Load() > answered
	return SetResult{IsSet: reply.isNull(), Current: reply.stringValue(), Lost: lost}, err
}

// Swap replaces the value of key by text for ttl milliseconds, if the value is old, and waits for the replicas. Swap
// returns swapped = false without an error if the server does not support SET with IFEQ, or has answered with an
// error. The caller then runs a script, which shows the reason.
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

// Script is a Lua script for EVAL and EVALSHA.
type Script struct {
	source, hash any  // strings
	extraKeys    int  // how many of the first arguments are names of keys
	requiresKeys bool // the script needs its extra keys
}

// NewScript returns the script with the given source.
func NewScript(source string) Script {
	return Script{source: source, hash: redis.NewScript(source).Hash()}
}

// With returns the script with extra keys: the first keys arguments of a call are names of keys, besides the key on
// which the script runs. While a Cluster moves a slot, a script can use two keys of the slot only if both are on the
// same server. The Conn runs the script without its extra keys if the Cluster refuses both keys for this reason.
func (s Script) With(keys int) Script { return Script{s.source, s.hash, keys, false} }

// WithRequired is like With for a script that needs its extra keys.
func (s Script) WithRequired(keys int) Script { return Script{s.source, s.hash, keys, true} }

// evalshaCommand returns the EVALSHA command that runs the script on key.
func (s Script) evalshaCommand(key any, args []any) []any {
	return append(append(make([]any, 0, 8), "evalsha", s.hash, 1+s.extraKeys, key), args...)
}

// evalCommand returns the EVAL command for an EVALSHA command whose script is missing in the cache of the server.
func (s Script) evalCommand(args []any) []any {
	return slices.Concat([]any{"eval", s.source}, args[2:])
}

func isNoScript(err error) bool { return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") }

// Run runs script on key.
func (c *Conn) Run(ctx context.Context, script Script, key any, args ...any) (reply string, lost bool, err error) {
	return c.runScript(ctx, c.sendCommand, script, key, args)
}

// RunCopied is like Run, and waits until the replicas have the writes of the script.
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

// sendScript sends an EVALSHA command that runs the script. If the server does not have the script in its cache,
// sendScript then sends an EVAL command with the source.
func (s Script) sendScript(ctx context.Context, send sender, key any, command []any) (reply string, err error) {
	reply, err = send(ctx, key, command)
	if isNoScript(err) {
		reply, err = send(ctx, key, s.evalCommand(command))
	}
	return reply, err
}

// RunStaged is like RunCopied for a script with a text that is too large to pass through Lua. RunStaged stores text
// under the key staged, from which the script renames the text. SET and the script go out together. If the script
// does not run, the staged text expires after a minute.
func (c *Conn) RunStaged(
	ctx context.Context, script Script, key any, staged string, text []byte, args ...any,
) (reply string, lost bool, err error) {
	command := append(append(make([]any, 0, 8), "evalsha", script.hash, 2+script.extraKeys, key, staged), args...)
	lost, err = c.retryStep(ctx, func() (err error) {
		set := redis.NewStatusCmd(ctx, "set", staged, text, "px", time.Minute.Milliseconds())
		reply, err = c.sendAfter(ctx, key, set, command)
		if isNoScript(err) {
			reply, err = c.sendCopied(ctx, key, script.evalCommand(command))
		}
		return err
	})
	return reply, lost, err
}

// retryStep repeats a step until its reply is known, at most three times. The step must be harmless to repeat. The
// error is the error of the last try that had a connection, or of the first try if none had one. The result lost
// leaves out the tries that the client has repeated by itself.
//
// A step that runs out of time may have waited for its connection most of the time. The error of retryStep therefore
// wraps Errors.Busy if three conditions hold: more steps than connections were under way at the start of the step or at the end of a try, the step
// has timed out, and the server has replied within the last minute.
func (c *Conn) retryStep(ctx context.Context, step func() error) (lost bool, err error) {
	crowded := c.poolCrowd.Enter()
	defer c.poolCrowd.Leave()
	const maxTries = 3
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
		if answered || ctx.Err() != nil || tries == maxTries {
			break
		}
	}
	if crowded && isTimeout(failure) && c.poolCrowd.WasUp() {
		failure = c.errorKinds.wrapBusy(failure)
	}
	return lost, c.errorKinds.wrapError(failure)
}

// sendCommand sends a command once. Process makes half as many allocations as Do and EvalSha.
func (c *Conn) sendCommand(ctx context.Context, key any, args []any) (reply string, err error) {
	cmd := redis.NewStringCmd(ctx, args...)
	if err := c.processCommand(ctx, key, cmd); err != nil {
		return "", err
	}
	return cmd.Val(), nil
}

// sendCopied is like sendCommand, and fails until enough replicas have the writes of the command.
func (c *Conn) sendCopied(ctx context.Context, key any, args []any) (reply string, err error) {
	if c.replicaCount == 0 {
		return c.sendCommand(ctx, key, args)
	}
	return c.sendAfter(ctx, key, nil, args)
}

// processCommand sends cmd once, and returns by the end of ctx, whatever the client does. After an error, cmd must
// not be read, because the client may still write to cmd.
func (c *Conn) processCommand(ctx context.Context, key any, cmd redis.Cmder) error {
	if c.honorsDeadline {
		return c.wrapPoolError(ctx, key, c.client.Process(ctx, cmd))
	}
	return c.wrapPoolError(ctx, key, runUntilDone(ctx, func() error {
		if err := c.client.Process(ctx, cmd); err != nil {
			return err
		}
		return cmd.Err() // waits until a client that sends later has sent cmd
	}))
}

// execPipeline is like processCommand for the commands in a pipeline.
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

// runUntilDone returns the error of send, or errNoReplyInTime once ctx has ended.
func runUntilDone(ctx context.Context, send func() error) error {
	if err := ctx.Err(); err != nil {
		return err // too late to send anything
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

// wrapPoolError wraps err in Errors.Busy if the last try had no connection to send its command on. The client may
// have tried before by itself.
func (c *Conn) wrapPoolError(ctx context.Context, key any, err error) error {
	if err == nil || !isPoolWait(err) || !c.isConnected(ctx, key, err) {
		return err
	}
	return c.errorKinds.wrapBusy(err)
}

// rawReply is a reply of Redis in the form of the protocol.
type rawReply []byte

func (r rawReply) isNull() bool { return string(r) == "$-1\r\n" || string(r) == "_\r\n" }

// stringValue returns the string in the reply, or nil if the reply is no string. The result shares the memory of the
// reply.
func (r rawReply) stringValue() []byte {
	head, text, ok := bytes.Cut(r, []byte("\r\n"))
	if !ok || !bytes.HasPrefix(head, []byte("$")) || len(text) < 2 {
		return nil
	}
	return text[:len(text)-2]
}
