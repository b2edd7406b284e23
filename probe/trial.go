package probe

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// trial is one check of one service.
type trial struct {
	ctx          context.Context
	service      *Service
	client       *client
	known        *knowledge
	result       *Result
	missingParts []string // the parts of the check that could not be made
	longestBlock time.Duration
	reportStep   func(done, total int)
}

// knowledge is the state that checks hand on to later checks of the service.
type knowledge struct {
	requestLatency time.Duration        // of a first execution
	slowLatency    time.Duration        // of a first execution of Service.Slow
	answersDiffer  bool                 // two operations have different answers
	effectDelay    time.Duration        // between an answer and its effect, 0 if the effect is counted right after the answer
	isProxied      bool                 // connections are accepted although the process was killed
	seenRefusals   map[string]*exchange // by the name of the decision
	decisions      map[string]string    // by their names, as seen last
	failedChecks   map[string]bool      // by their names
}

// failure is the error of a check that has found a fault of the service.
type failure struct {
	messageText string
	exchanges   []*exchange
}

func (f *failure) Error() string { return f.messageText }

// fail returns an error about a fault of the service. The exchanges prove the fault.
func fail(exchanges []*exchange, format string, args ...any) error {
	return &failure{messageText: fmt.Sprintf(format, args...), exchanges: exchanges}
}

// notMadeError is the error of a check that could not be made.
type notMadeError struct {
	reason        string
	isInterrupted bool
}

func (e *notMadeError) Error() string { return e.reason }

// notMade returns the error of a check that does not suit the service.
func notMade(format string, args ...any) error {
	return &notMadeError{reason: fmt.Sprintf(format, args...)}
}

// interrupted returns the error of a check that something else than the service has ended.
func interrupted(format string, args ...any) error {
	return &notMadeError{reason: fmt.Sprintf(format, args...), isInterrupted: true}
}

// newKey returns a random UUID (version 4), because some services take UUIDs only.
func newKey() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails, according to its documentation
	id[6] = id[6]&0x0f | 0x40
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// newRequest returns what build makes for a new key.
func (t *trial) newRequest(build func(string) *http.Request) (*request, string, error) {
	key := newKey()
	r, err := t.service.newRequest(build, key)
	return r, key, err
}

// newCountedRequest is newRequest with the effects before the request.
func (t *trial) newCountedRequest(build func(string) *http.Request) (r *request, before int, err error) {
	if r, _, err = t.newRequest(build); err != nil {
		return nil, 0, err
	}
	before, err = t.countEffects()
	return r, before, err
}

// instance returns the base URL of instance i. The instances repeat.
func (t *trial) instance(i int) string { return t.service.URLs[i%len(t.service.URLs)] }

// send sends r to the first instance.
func (t *trial) send(r *request) *exchange { return t.sendTo(0, r) }

// sendTo sends r to instance i, and sends r again while the service limits the rate of requests.
func (t *trial) sendTo(i int, r *request) *exchange {
	return t.sendWith(t.client.http1Transport, i, r)
}

// sendWith is sendTo for another version of HTTP.
func (t *trial) sendWith(transport http.RoundTripper, i int, r *request) *exchange {
	const maxTries = 5
	for tries := 1; ; tries++ {
		made := t.client.send(t.ctx, transport, r, t.instance(i))
		if made.answer == nil || made.answer.status != http.StatusTooManyRequests || tries == maxTries {
			return made
		}
		seconds, _ := strconv.Atoi(made.answer.header.Get("Retry-After"))
		if t.sleep(min(max(time.Duration(seconds)*time.Second, 100*time.Millisecond), 10*time.Second)) != nil {
			return made
		}
	}
}

// sendOnce sends r to instance i, for checks that judge every refusal.
func (t *trial) sendOnce(i int, r *request) *exchange {
	return t.client.send(t.ctx, t.client.http1Transport, r, t.instance(i))
}

// execute sends r for the first time, and returns an error unless the service executes r.
func (t *trial) execute(r *request) (*exchange, error) {
	first := t.send(r)
	if first.answer == nil || !first.answer.isSuccess() {
		return first, t.failOrEnd([]*exchange{first}, "a valid request with a new key was answered with %s", first.describe())
	}
	return first, nil
}

// failOrEnd returns the error of ctx or of the bound on requests if one of them is the reason, and otherwise a failure.
func (t *trial) failOrEnd(exchanges []*exchange, format string, args ...any) error {
	if err := t.ctx.Err(); err != nil {
		return interrupted("%v", context.Cause(t.ctx))
	}
	for _, made := range exchanges {
		if errors.Is(made.err, errTooManyRequests) {
			return made.err
		}
	}
	return fail(exchanges, format, args...)
}

// retrial is the last of several retries.
type retrial struct {
	*exchange                // the last one
	blockedFor time.Duration // how long the service asked to come again
	isUnknown  bool          // the service does not know whether the operation was executed
	tryCount   int
}

// retryUntilAnswered sends r again while the service asks to come again, at most for Service.Bound. The first retry goes to
// instance i, the next one to the next instance. The error is nil if the last answer is a success or says that the outcome
// is unknown.
func (t *trial) retryUntilAnswered(i int, r *request) (retrial, error) {
	begin := time.Now()
	pause := 20 * time.Millisecond
	for tries := 1; ; tries++ {
		last := retrial{exchange: t.sendOnce(i+tries-1, r), tryCount: tries}
		last.blockedFor = time.Since(begin)
		got := last.answer
		switch {
		case got != nil && got.isSuccess():
			return last, nil
		case got != nil && t.service.IsUnknown(got.status, got.header, got.body):
			last.isUnknown = true
			return last, nil
		case got != nil && !got.asksToComeAgain() && got.status < http.StatusInternalServerError:
			return last, fail([]*exchange{last.exchange}, "a retry of a valid request was refused with %s", last.describe())
		case last.blockedFor+pause > t.service.Bound:
			return last, t.failOrEnd([]*exchange{last.exchange}, "the key is still blocked after %s: a retry gets %s",
				round(last.blockedFor), last.describe())
		case errors.Is(last.err, errTooManyRequests):
			return last, last.err
		}
		if got != nil {
			t.known.seenRefusals["while-running"] = cmp.Or(t.known.seenRefusals["while-running"], last.exchange)
		}
		if err := t.sleep(pause); err != nil {
			return last, err
		}
		pause = min(2*pause, 500*time.Millisecond)
	}
}

// sleep waits for d.
func (t *trial) sleep(d time.Duration) error {
	select {
	case <-t.ctx.Done():
		return interrupted("%v", context.Cause(t.ctx))
	case <-time.After(d):
		return nil
	}
}

// requireReplay returns a failure unless replay is the stored answer of first, the first execution: same status, header and
// body.
func (t *trial) requireReplay(first, replay *exchange) error {
	if err := t.requireSameAnswer(first, replay); err != nil {
		return err
	}
	marker, _ := t.compareHeaders(first.answer.header, replay.answer.header)
	return t.decide("marker", marker, first, replay)
}

// requireSameAnswer is requireReplay for two answers of which both may be replays.
func (t *trial) requireSameAnswer(first, second *exchange) error {
	both := []*exchange{first, second}
	if second.answer == nil {
		return t.failOrEnd(both, "the retry got %s", second.describe())
	}
	if second.answer.status != first.answer.status {
		return fail(both, "the retry got %s, and the first request %s", second.describe(), first.describe())
	}
	if string(second.answer.body) != string(first.answer.body) {
		return fail(both, "the retry got another body")
	}
	if _, difference := t.compareHeaders(first.answer.header, second.answer.header); difference != "" {
		return fail(both, "the retry got other header fields: %s", difference)
	}
	return nil
}

// decide records a decision of the service, and returns a failure if Service.Decided demands another one.
func (t *trial) decide(name, value string, exchanges ...*exchange) error {
	if !slices.ContainsFunc(t.result.Decisions, func(d Decision) bool { return d == Decision{name, value} }) {
		t.result.Decisions = append(t.result.Decisions, Decision{Name: name, Value: value})
		t.known.decisions[name] = value
	}
	if decided, ok := t.service.Decided[name]; ok && decided != value {
		return fail(exchanges, "the decision %s is %s, and Service.Decided demands %s", name, value, decided)
	}
	return nil
}

// note adds information to the result.
func (t *trial) note(format string, args ...any) {
	t.result.Notes = append(t.result.Notes, fmt.Sprintf(format, args...))
}

// addMissing records that a part of the check could not be made.
func (t *trial) addMissing(reason string) {
	if !slices.Contains(t.missingParts, reason) {
		t.missingParts = append(t.missingParts, reason)
	}
}

// countEffects returns the total of effects when all of them are visible, or 0 if the service does not count them.
func (t *trial) countEffects() (int, error) {
	if t.service.Effects == nil {
		t.addMissing("the effects were not counted, because Service.Effects is nil")
		return 0, nil
	}
	if t.known.effectDelay > 0 {
		if err := t.sleep(2 * t.known.effectDelay); err != nil {
			return 0, err
		}
	}
	return t.readEffects()
}

// readEffects returns what Service.Effects counts now. A failure is tried once more.
func (t *trial) readEffects() (count int, err error) {
	for range 2 {
		ctx, cancel := context.WithTimeout(t.ctx, t.service.Timeout)
		count, err = t.service.Effects(ctx)
		cancel()
		if err == nil {
			return count, nil
		}
		if err := t.sleep(100 * time.Millisecond); err != nil {
			return 0, err
		}
	}
	return 0, interrupted("Service.Effects: %v", err)
}

// effectsSince returns how many effects were added to before, after a pause in which effects of abandoned requests become
// visible. The result is known only if Service.Effects is set.
func (t *trial) effectsSince(before int) (added int, isKnown bool, err error) {
	if t.service.Effects == nil {
		return 0, false, nil
	}
	if err := t.sleep(t.known.requestLatency + 50*time.Millisecond); err != nil {
		return 0, false, err
	}
	after, err := t.countEffects()
	return after - before, true, err
}

// requireEffects returns a failure unless exactly wanted effects were added to before.
func (t *trial) requireEffects(before, wanted int, exchanges ...*exchange) error {
	added, isKnown, err := t.effectsSince(before)
	if err != nil || !isKnown || added == wanted {
		return err
	}
	return fail(exchanges, "the service acted %s instead of %s", times(added), times(wanted))
}

func times(n int) string {
	switch n {
	case 0:
		return "never"
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return strconv.Itoa(n) + " times"
}

// round shortens d for a report.
func round(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second)
	case d > time.Second:
		return d.Round(100 * time.Millisecond)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
