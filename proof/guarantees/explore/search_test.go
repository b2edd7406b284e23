package explore

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// search tries every choice of every execution, depth first.
type search struct {
	choices     []choice // at each step of the execution
	position    int
	hasDiverged bool // the same choices have led to different actions
}

// choice is the index of the picked action, and what identifies the action in a repetition.
type choice struct {
	pickedIndex, actionCount int
	requestName              string
	call                     call
	outcome                  outcome
}

func (s *search) pickAction(next []action) action {
	if s.position == len(s.choices) {
		s.choices = append(s.choices, choice{})
	}
	c := &s.choices[s.position]
	s.position++
	a := next[min(c.pickedIndex, len(next)-1)]
	is := choice{pickedIndex: c.pickedIndex, actionCount: len(next), outcome: a.outcome}
	if a.request != nil {
		is.requestName = a.request.name
	}
	if a.pendingCall != nil {
		is.call = a.pendingCall.call
	}
	s.hasDiverged = s.hasDiverged || c.pickedIndex >= len(next) || c.actionCount > 0 && *c != is
	*c = is
	return a
}

// nextExecution prepares the choices of the next execution, and reports whether an execution is left.
func (s *search) nextExecution() bool {
	last := len(s.choices) - 1
	for ; last >= 0 && s.choices[last].pickedIndex == s.choices[last].actionCount-1; last-- {
	}
	if last < 0 {
		return false
	}
	s.choices, s.position = s.choices[:last+1], 0
	s.choices[last] = choice{pickedIndex: s.choices[last].pickedIndex + 1}
	return true
}

var errNotRepeatable = errors.New("an execution is not repeatable")

// violation is a broken promise, and the execution that broke the promise.
type violation struct {
	brokenPromise error
	trace         actionTrace
	schedule      schedule
}

func (v *violation) Error() string {
	return fmt.Sprintf("%v\n%v  %v\ngo test ./proof/guarantees/explore -run TestEveryExecutionKeepsThePromises -schedule '%v'",
		v.brokenPromise, v.trace, v.brokenPromise, v.schedule)
}

// exploreBound runs all executions within b, but stops at the first violation.
func exploreBound(t *testing.T, b bound) (executions int, found *violation) {
	s := new(search)
	for more := true; more && found == nil; more = s.nextExecution() {
		executions++
		found = runExecution(t, b, s)
	}
	return executions, found
}

// runExecution runs the execution whose choices s picks.
func runExecution(t *testing.T, b bound, s *search) (found *violation) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(b)
		w.performActions(s.pickAction)
		if w.brokenPromise == nil && s.hasDiverged {
			w.brokenPromise = errNotRepeatable
		}
		if w.brokenPromise == nil {
			return
		}
		found = &violation{w.brokenPromise, w.trace, schedule{bound: b}}
		for _, c := range s.choices[:s.position] {
			found.schedule.PickedIndexes = append(found.schedule.PickedIndexes, c.pickedIndex)
		}
	})
	return found
}

// replaySchedule runs the execution that a schedule identifies.
func replaySchedule(t *testing.T, s schedule) *violation {
	search := new(search)
	for _, picked := range s.PickedIndexes {
		search.choices = append(search.choices, choice{pickedIndex: picked})
	}
	return runExecution(t, s.bound, search)
}
