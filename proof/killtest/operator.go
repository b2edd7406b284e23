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

// Operator resolves what processes of [ExecuteOnce] have abandoned. It decides at random, so it is often wrong. What it
// decides must count all the same.
type Operator struct {
	store    idempotency.Resolver
	began    time.Time
	answers  map[string]string // of operations that have happened, as it says
	attempts map[string]int    // their last attempts
	resolved map[string]idempotency.Resolved
	released int
}

// NewOperator returns one for processes that start from now on.
func NewOperator(store idempotency.Resolver) *Operator {
	return &Operator{
		store: store, began: time.Now(), answers: make(map[string]string), attempts: make(map[string]int),
		resolved: make(map[string]idempotency.Resolved),
	}
}

// Work resolves operations of the last seconds until ctx ends.
func (o *Operator) Work(ctx context.Context) error {
	for ctx.Err() == nil {
		lately := time.Now().Add(-rand.N(2 * time.Second))
		if _, err := o.resolve(context.WithoutCancel(ctx), keyAt(lately)); err != nil {
			return err
		}
	}
	return nil
}

// Finish resolves what is left when all processes have ended. It returns an error if an operation stays as it is.
func (o *Operator) Finish(ctx context.Context) error {
	for at := o.began.Add(-time.Second); at.Before(time.Now()); at = at.Add(5 * time.Millisecond) {
		key := keyAt(at)
		for began := time.Now(); ; time.Sleep(time.Millisecond) {
			state, err := o.resolve(ctx, key)
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

// resolve resolves the operation of a key, if it is abandoned, and returns the state before.
func (o *Operator) resolve(ctx context.Context, key idempotency.Key) (idempotency.State, error) {
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
		o.answers[key.ID], o.attempts[key.ID] = answer, entry.Attempt
		o.resolved[key.ID] = resolution.Resolved(entry)
	default:
		o.released++
		o.resolved[key.ID] = resolution.Resolved(entry)
	}
	return entry.State, nil
}

// forgotten returns an error if a record does not say any more how the operator has resolved its operation last, whatever
// has become of it since.
func (o *Operator) forgotten(ctx context.Context) error {
	var faults []error
	for id, want := range o.resolved {
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

// Explain tells said what the operator has answered, and explains the rest as said does. It also returns an error if an
// operation ran after the operator had said that it had happened, or if a record does not say how it was resolved.
func (o *Operator) Explain(ctx context.Context, said *Operations, effects string) (repeated int, err error) {
	attempts, err := readAttempts(effects)
	faults := []error{err, o.forgotten(ctx)}
	for id, answer := range o.answers {
		faults = append(faults, said.answers.hears(id, answer))
		said.unseen[id] = true
		for _, attempt := range attempts[id] {
			n, _ := strconv.Atoi(attempt[strings.LastIndexByte(attempt, '/')+1:])
			if n > o.attempts[id] {
				faults = append(faults, fmt.Errorf("%s ran although attempt %d was resolved", attempt, o.attempts[id]))
			}
		}
	}
	repeated, err = said.Explain(ctx, o.store.(idempotency.Store), effects)
	return repeated, errors.Join(append(faults, err)...)
}

// Counts returns how many operations the operator has ended in each of the two ways.
func (o *Operator) Counts() (happened, not int) { return len(o.answers), o.released }
