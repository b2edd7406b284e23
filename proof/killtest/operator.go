package killtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Operator resolves operations that processes of [ExecuteOnce] have abandoned. The operator decides at random, so
// many decisions are wrong. The store must keep the decisions nevertheless.
type Operator struct {
	store         idempotency.Resolver
	startedAt     time.Time
	answerByKey   map[string]string // answers of operations that were resolved as executed
	attemptByKey  map[string]int    // last attempts of these operations
	resolvedByKey map[string]idempotency.Resolved
	releasedCount int // operations that were resolved as not executed
}

// NewOperator returns an operator for processes that start after the call.
func NewOperator(store idempotency.Resolver) *Operator {
	return &Operator{
		store: store, startedAt: time.Now(), answerByKey: make(map[string]string), attemptByKey: make(map[string]int),
		resolvedByKey: make(map[string]idempotency.Resolved),
	}
}

// Work resolves operations of the last seconds until ctx ends.
func (o *Operator) Work(ctx context.Context) error {
	for ctx.Err() == nil {
		lately := time.Now().Add(-rand.N(2 * time.Second))
		if _, err := o.resolveKey(context.WithoutCancel(ctx), keyAt(lately)); err != nil {
			return err
		}
	}
	return nil
}

// Finish resolves the remaining abandoned operations after all processes have ended. Finish returns an error if an
// operation stays running or abandoned.
func (o *Operator) Finish(ctx context.Context) error {
	for at := o.startedAt.Add(-time.Second); at.Before(time.Now()); at = at.Add(5 * time.Millisecond) {
		key := keyAt(at)
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			state, err := o.resolveKey(ctx, key)
			if err != nil {
				return err
			}
			if state != idempotency.StateRunning && state != idempotency.StateAbandoned {
				break
			}
			if time.Since(began) > longestWait {
				return fmt.Errorf("%s is stuck: it is %s", key.ID, state)
			}
		}
	}
	return nil
}

// resolveKey resolves the operation of a key if the operation is abandoned, and returns the state before.
func (o *Operator) resolveKey(ctx context.Context, key idempotency.Key) (idempotency.State, error) {
	entry, err := o.store.Inspect(ctx, key)
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		return "", nil
	case err != nil || entry.State != idempotency.StateAbandoned:
		return entry.State, err
	}
	resolution := idempotency.Resolution{Operator: "operator", Reason: "at random", At: time.Now(), TTL: Request.TTL}
	answer := fmt.Sprintf("operator-%s-%d", key.ID, entry.Attempt)
	if rand.N(2) == 0 {
		resolution.Response = &idempotency.Response{Status: 201, Body: []byte(answer)}
	}
	switch err := o.store.Resolve(ctx, entry, resolution); {
	case errors.Is(err, idempotency.ErrEntryChanged), errors.Is(err, idempotency.ErrInProgress):
	case err != nil:
		return entry.State, err
	case resolution.Response != nil:
		o.answerByKey[key.ID], o.attemptByKey[key.ID] = answer, entry.Attempt
		o.resolvedByKey[key.ID] = resolution.Resolved(entry)
	default:
		o.releasedCount++
		o.resolvedByKey[key.ID] = resolution.Resolved(entry)
	}
	return entry.State, nil
}

// checkResolutions returns an error unless each record still contains the last resolution of the operator. The
// resolution stays in the record regardless of later changes.
func (o *Operator) checkResolutions(ctx context.Context) error {
	var faults []error
	for id, want := range o.resolvedByKey {
		entry, err := o.store.Inspect(ctx, keyOf(id))
		switch {
		case err != nil:
			faults = append(faults, err)
		case entry.Resolved == nil || *entry.Resolved != want:
			faults = append(faults, fmt.Errorf("%s was resolved as %+v, and the record says %+v", id, want, entry.Resolved))
		}
	}
	return errors.Join(faults...)
}

// Explain adds the answers of the operator to said, and calls Explain of said. Explain also returns an error if an
// operation ran after the operator had resolved the operation as executed, or if a record lacks the resolution.
func (o *Operator) Explain(ctx context.Context, said *Operations, effects string) (repeated int, err error) {
	attempts, err := readAttempts(effects)
	faults := []error{err, o.checkResolutions(ctx)}
	for id, answer := range o.answerByKey {
		faults = append(faults, said.answers.addAnswer(id, answer))
		said.operatorKeys[id] = true
		for _, attempt := range attempts[id] {
			n, _ := strconv.Atoi(attempt[strings.LastIndexByte(attempt, '/')+1:])
			if n > o.attemptByKey[id] {
				faults = append(faults, fmt.Errorf("%s ran although attempt %d was resolved", attempt, o.attemptByKey[id]))
			}
		}
	}
	repeated, err = said.Explain(ctx, o.store.(idempotency.Store), effects)
	return repeated, errors.Join(append(faults, err)...)
}

// Counts returns the number of operations that were resolved as executed, and as not executed.
func (o *Operator) Counts() (happened, not int) { return len(o.answerByKey), o.releasedCount }
