package explore

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
)

// search tries every choice, depth first.
type search struct {
	choices []choice // at each step of the execution
	step    int
	lost    bool // the same choices led to something else
}

// choice is one of several actions, and which one it is.
type choice struct {
	picked, of int
	request    string
	call       call
	outcome    outcome
}

func (s *search) pick(next []action) action {
	if s.step == len(s.choices) {
		s.choices = append(s.choices, choice{})
	}
	c := &s.choices[s.step]
	s.step++
	a := next[min(c.picked, len(next)-1)]
	is := choice{picked: c.picked, of: len(next), outcome: a.outcome}
	if a.request != nil {
		is.request = a.request.name
	}
	if a.point != nil {
		is.call = a.point.call
	}
	s.lost = s.lost || c.picked >= len(next) || c.of > 0 && *c != is
	*c = is
	return a
}

// next moves on to the next execution, and reports whether there is one.
func (s *search) next() bool {
	last := len(s.choices) - 1
	for ; last >= 0 && s.choices[last].picked == s.choices[last].of-1; last-- {
	}
	if last < 0 {
		return false
	}
	s.choices, s.step = s.choices[:last+1], 0
	s.choices[last] = choice{picked: s.choices[last].picked + 1}
	return true
}

var errLost = errors.New("an execution is not repeatable")

// violation is a promise that was broken.
type violation struct {
	broken   error
	trace    steps
	schedule schedule
}

func (v *violation) Error() string {
	return fmt.Sprintf("%v\n%v  %v\ngo test ./proof/guarantees/explore -run TestEveryExecutionKeepsThePromises -schedule '%v'",
		v.broken, v.trace, v.broken, v.schedule)
}

// explore runs all executions within b, or until one breaks a promise.
func explore(t *testing.T, b bound) (executions int, found *violation) {
	s := new(search)
	for more := true; more && found == nil; more = s.next() {
		executions++
		found = execute(t, b, s)
	}
	return executions, found
}

// execute runs one execution.
func execute(t *testing.T, b bound, s *search) (found *violation) {
	synctest.Test(t, func(*testing.T) {
		w := newWorld(b)
		w.run(s.pick)
		if w.broken == nil && s.lost {
			w.broken = errLost
		}
		if w.broken == nil {
			return
		}
		found = &violation{w.broken, w.trace, schedule{bound: b}}
		for _, c := range s.choices[:s.step] {
			found.schedule.Picks = append(found.schedule.Picks, c.picked)
		}
	})
	return found
}

// replay runs the one execution that a schedule names.
func replay(t *testing.T, s schedule) *violation {
	search := new(search)
	for _, picked := range s.Picks {
		search.choices = append(search.choices, choice{picked: picked})
	}
	return execute(t, s.bound, search)
}
