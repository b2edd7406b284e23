package explore

import (
	"fmt"
	"strings"
	"time"
)

// call is an operation of the store or of the handler whose outcome the explorer decides.
type call uint8

const (
	beginCall call = iota
	extendCall
	completeCall
	releaseCall
	readStepsCall // Checkpoints
	storeStepCall // Checkpoint: stores the result of a step
	openTxCall    // begins a transaction
	commitTxCall  // commits rows, and the result of a step
	handlerEffect // the effect of the handler
	handlerRest   // the rest of a handler that has sent a large answer
)

// goesToStore reports whether the call goes to the store instead of the handler.
func (c call) goesToStore() bool { return c <= commitTxCall }

// outcome is the way a call continues, or an event without a call.
type outcome uint8

const (
	succeeds outcome = iota
	fails
	replyIsLost
	replyIsDelayed
	callIsDelayed
	exitsAfterEffect
	crashesBefore
	crashesAfter

	arrives    // the delayed call or reply
	timePasses // without a call
	clockJumps // without a call: the clock of the store
)

// isFault reports whether the outcome counts as a fault.
func (o outcome) isFault() bool { return o > succeeds && o < arrives }

var (
	storeOutcomes     = []outcome{succeeds, fails, replyIsLost, replyIsDelayed, callIsDelayed, crashesBefore, crashesAfter}
	slowStoreOutcomes = []outcome{succeeds, replyIsDelayed, callIsDelayed}
	handlerOutcomes   = []outcome{succeeds, fails, exitsAfterEffect, crashesBefore, crashesAfter}
	restOutcomes      = []outcome{succeeds, exitsAfterEffect, crashesBefore}
	faultlessOutcomes = []outcome{succeeds}
	delayedOutcomes   = []outcome{arrives}
)

var callNames = [...]string{
	"Begin", "Extend", "Complete", "Release", "Checkpoints", "Checkpoint", "BEGIN", "COMMIT", "effect", "rest",
}

var outcomeNames = [...]string{
	"is fine", "fails", "fails, but has its effect", "has its effect, and its reply is held back",
	"is held back", "has its effect, and the handler exits", "does not happen: the process crashes",
	"has its effect, and the process crashes", "arrives", "time passes", "the clock of the store jumps",
}

// stage is the progress of a call.
type stage uint8

const (
	undecided    stage = iota // the explorer has decided nothing
	replyDelayed              // the call has had its effect, and the reply is on its way
	callDelayed               // the call is on its way to the store
)

// pendingCall is a call that waits for the explorer.
type pendingCall struct {
	request     *request
	call        call
	stage       stage
	callNumber  int // counts the calls of the request
	applyEffect func() error
	isAbandoned bool // the caller has stopped waiting

	// What the caller finds when it resumes.
	resume        chan struct{}
	mayHaveEffect bool // the effect may happen, or has happened
	handlerExits  bool
	replyErr      error
}

// possibleOutcomes returns the outcomes among which the explorer chooses. Without faults there is one outcome.
func (p *pendingCall) possibleOutcomes(w *world) []outcome {
	if p.stage != undecided {
		return delayedOutcomes
	}
	return w.outcomesOfCall(p.call)
}

func (w *world) outcomesOfCall(c call) []outcome {
	switch {
	case w.Faults == 0 || w.OnlySlowCalls && !c.goesToStore():
		return faultlessOutcomes
	case w.OnlySlowCalls:
		return slowStoreOutcomes
	case c == handlerEffect:
		return handlerOutcomes
	case c == handlerRest:
		return restOutcomes
	}
	return storeOutcomes
}

// action is a possible next event: of a pending call, of a request that has not begun, or of the clock.
type action struct {
	request     *request
	pendingCall *pendingCall
	outcome     outcome
}

// performedAction is an entry of the trace.
type performedAction struct {
	request     *request
	call        call
	outcome     outcome
	performedAt time.Duration
}

type actionTrace []performedAction

func (s actionTrace) String() string {
	var b strings.Builder
	for _, step := range s {
		fmt.Fprintf(&b, "  %6.3f leases: ", step.performedAt.Seconds()/leaseDuration.Seconds())
		if step.request != nil {
			fmt.Fprintf(&b, "%s of %s ", callNames[step.call], step.request.name)
		}
		fmt.Fprintln(&b, outcomeNames[step.outcome])
	}
	return b.String()
}
