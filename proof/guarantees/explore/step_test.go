package explore

import (
	"fmt"
	"strings"
	"time"
)

// call is what a request waits for.
type call uint8

const (
	begin call = iota
	extend
	complete
	release
	read   // the steps that are stored
	keep   // the result of a step
	open   // a transaction
	commit // rows, and the result of a step
	effect // of the handler
	rest   // of a handler that has sent a large answer
)

// toStore reports whether the call is one of the store, and not of the handler.
func (c call) toStore() bool { return c <= commit }

// outcome is how a call goes on.
type outcome uint8

const (
	fine outcome = iota
	failed
	unanswered
	slow
	late
	exited
	diedBefore
	diedAfter

	arrives // what was slow or late
	passes  // of no call: time
	jumps   // of no call: the clock of the store
)

// isFault reports whether the outcome counts as a fault.
func (o outcome) isFault() bool { return o > fine && o < arrives }

var (
	ofStore     = []outcome{fine, failed, unanswered, slow, late, diedBefore, diedAfter}
	ofSlowStore = []outcome{fine, slow, late}
	ofHandler   = []outcome{fine, failed, exited, diedBefore, diedAfter}
	ofRest      = []outcome{fine, exited, diedBefore}
	ofNothing   = []outcome{fine}
	ofDelay     = []outcome{arrives}
)

var callNames = [...]string{"Begin", "Extend", "Complete", "Release", "Checkpoints", "Checkpoint", "BEGIN", "COMMIT", "effect", "rest"}

var outcomeNames = [...]string{
	"is fine", "fails", "fails, but has its effect", "has its effect, and its reply is held back",
	"is held back", "has its effect, and the handler exits", "does not happen: the process crashes",
	"has its effect, and the process crashes", "arrives", "time passes", "the clock of the store jumps",
}

// stage is how far a call has come.
type stage uint8

const (
	asked    stage = iota // nothing is decided
	held                  // it has its effect, and its reply is on its way
	underway              // it is on its way to the store
)

// point is a call that waits for the explorer.
type point struct {
	request *request
	call    call
	stage   stage
	number  int // of the calls of the request
	effect  func() error
	gone    bool // nobody waits for the reply

	// What the caller finds when it goes on.
	goOn  chan struct{}
	sent  bool // it may have its effect
	exits bool
	err   error
}

// outcomes returns how the point may go on. Without faults, there is one way.
func (p *point) outcomes(w *world) []outcome {
	if p.stage != asked {
		return ofDelay
	}
	return w.outcomesOf(p.call)
}

func (w *world) outcomesOf(c call) []outcome {
	switch {
	case w.Faults == 0 || w.Slow && !c.toStore():
		return ofNothing
	case w.Slow:
		return ofSlowStore
	case c == effect:
		return ofHandler
	case c == rest:
		return ofRest
	}
	return ofStore
}

// action is what can happen next: to a point, to a request that has not begun, or to the clock.
type action struct {
	request *request
	point   *point
	outcome outcome
}

// step is an action that has happened.
type step struct {
	request *request
	call    call
	outcome outcome
	at      time.Duration
}

type steps []step

func (s steps) String() string {
	var b strings.Builder
	for _, step := range s {
		fmt.Fprintf(&b, "  %6.3f leases: ", step.at.Seconds()/lease.Seconds())
		if step.request != nil {
			fmt.Fprintf(&b, "%s of %s ", callNames[step.call], step.request.name)
		}
		fmt.Fprintln(&b, outcomeNames[step.outcome])
	}
	return b.String()
}
