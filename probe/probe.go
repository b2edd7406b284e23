package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// checkRun is a check with the function that makes it.
type checkRun struct {
	Check
	needs    string // the field of Service without which the check cannot be made, or ""
	runCheck func(*trial) error
}

// Checks returns all checks, in the order in which they are made.
func Checks() []Check {
	var checks []Check
	for _, c := range allChecks() {
		checks = append(checks, c.Check)
	}
	return checks
}

func findCheck(name string) *checkRun {
	for _, c := range allChecks() {
		if c.Name == name {
			return &c
		}
	}
	return nil
}

// Run makes each check of service a subtest of t. A check that is not made, or partly made, is a skipped subtest with the
// reason, and an interrupted check fails. Run fails t if service is misconfigured, or does not execute a valid request.
func Run(t *testing.T, service Service) {
	t.Helper()
	p, err := newProber(t.Context(), service)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for _, c := range allChecks() {
		t.Run(c.Name, func(t *testing.T) {
			result := p.makeCheck(t.Context(), &c, nil)
			switch {
			case result.Status == Failed, result.IsInterrupted:
				t.Error(result.Explain())
			case result.Status == Passed:
				t.Log(result.Explain())
			default:
				t.Skip(result.Explain())
			}
		})
	}
}

// Event tells how far a run is.
type Event struct {
	// Check is the check under way.
	Check Check

	// Done of Total parts of the check are made. Both are 0 at the begin of a check.
	Done, Total int

	// Result is the result at the end of the check, and nil before.
	Result *Result
}

// MakeChecks makes the checks of service, and returns the results. observe gets each event; nil ignores events.
//
// After the end of ctx, the remaining checks are not made. Errors:
//
//   - [ErrInvalidService]: a field of service is missing or invalid
//   - [ErrNotExecuted]: the service does not execute a valid request, or Service.Effects does not count the request once; every
//     check needs executed requests
func MakeChecks(ctx context.Context, service Service, observe func(Event)) (*Report, error) {
	p, err := newProber(ctx, service)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if observe == nil {
		observe = func(Event) {}
	}
	report := new(Report)
	for _, c := range allChecks() {
		observe(Event{Check: c.Check})
		result := p.makeCheck(ctx, &c, func(done, total int) { observe(Event{Check: c.Check, Done: done, Total: total}) })
		observe(Event{Check: c.Check, Result: &result})
		report.Results = append(report.Results, result)
	}
	report.Requests = p.service.MaxRequests - int(max(0, p.client.requestsLeft.Load()))
	return report, nil
}

// prober makes the checks of one service.
type prober struct {
	service Service
	client  *client
	known   knowledge
}

// newProber returns a prober that has executed valid requests, because the checks need their answers and durations.
func newProber(ctx context.Context, service Service) (*prober, error) {
	service, err := service.withDefaults()
	if err != nil {
		return nil, err
	}
	p := &prober{service: service, client: newClient(&service)}
	p.known.seenRefusals, p.known.decisions = make(map[string]*exchange), make(map[string]string)
	p.known.failedChecks = make(map[string]bool)
	if err := p.learn(ctx); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *prober) close() { p.client.close() }

// learn sends valid requests with new keys.
func (p *prober) learn(ctx context.Context) error {
	t := p.newTrial(ctx, new(Result), nil)
	var executed []*exchange
	effectsBefore := 0
	if p.service.Effects != nil {
		var err error
		if effectsBefore, err = t.readEffects(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalidService, err)
		}
	}
	for i, build := range []func(string) *http.Request{p.service.Request, p.service.Request, p.service.Request, p.service.Slow} {
		r, _, err := t.newRequest(build)
		if err != nil {
			return fmt.Errorf("%w: Service.Request or Service.Slow: %w", ErrInvalidService, err)
		}
		made := t.sendTo(i, r)
		if made.answer == nil || !made.answer.isSuccess() {
			shown := made.show()
			return fmt.Errorf("%w, and answered with %s\n%s\n%s", ErrNotExecuted, made.describe(), shown.Curl, shown.Answer)
		}
		executed = append(executed, made)
		if i == 0 && p.service.Effects != nil {
			if p.known.effectDelay, err = t.awaitFirstEffect(effectsBefore, made); err != nil {
				return err
			}
		}
	}
	p.known.requestLatency = min(executed[1].answer.duration, executed[2].answer.duration) // the first one may have opened connections
	p.known.slowLatency = executed[3].answer.duration
	p.known.answersDiffer = !haveSameAnswer(executed[0], executed[1]) && !haveSameAnswer(executed[1], executed[2])
	return nil
}

// awaitFirstEffect waits for the effect of a first request, and returns how long it came after the answer.
func (t *trial) awaitFirstEffect(before int, made *exchange) (time.Duration, error) {
	answered := time.Now()
	limit := min(t.service.Bound, 10*time.Second)
	for isFirst := true; ; isFirst = false {
		counted := time.Now()
		total, err := t.readEffects()
		switch added := total - before; {
		case err != nil:
			return 0, fmt.Errorf("%w: %w", ErrInvalidService, err)
		case added == 1 && isFirst:
			return 0, nil
		case added == 1:
			return counted.Sub(answered), nil
		case added != 0 || counted.Sub(answered) > limit:
			return 0, fmt.Errorf("%w exactly once; after the answer %s to the first request, Service.Effects counts %d more",
				ErrNotExecuted, made.describe(), added)
		}
		if err := t.sleep(20 * time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// haveSameAnswer reports whether a client cannot tell the answers apart.
func haveSameAnswer(a, b *exchange) bool {
	return a.answer.status == b.answer.status && string(a.answer.body) == string(b.answer.body) &&
		a.answer.header.Get("Location") == b.answer.header.Get("Location")
}

func (p *prober) newTrial(ctx context.Context, result *Result, reportStep func(done, total int)) *trial {
	if reportStep == nil {
		reportStep = func(int, int) {}
	}
	return &trial{ctx: ctx, service: &p.service, client: p.client, known: &p.known, result: result, reportStep: reportStep}
}

// makeCheck makes one check.
func (p *prober) makeCheck(ctx context.Context, c *checkRun, reportStep func(done, total int)) (result Result) {
	begin := time.Now()
	result = Result{Check: c.Check}
	defer func() { result.Duration = time.Since(begin) }()
	if reason, ok := p.service.Skip[c.Name]; ok {
		result.Status, result.Detail = Skipped, reason
		return result
	}
	if len(p.service.Only) > 0 && !slices.Contains(p.service.Only, c.Name) {
		result.Status, result.Detail = Skipped, "Service.Only does not name the check"
		return result
	}
	if field := c.findMissingField(&p.service); field != "" {
		result.Status, result.Detail = NotMade, "Service."+field+" is not set"
		return result
	}
	t := p.newTrial(ctx, &result, reportStep)
	err := c.runCheck(t)
	if t.longestBlock > 0 {
		t.note("a key was blocked for up to %s", round(t.longestBlock))
	}
	t.end(err)
	return result
}

// end sets the status of the result.
func (t *trial) end(err error) {
	var found *failure
	switch {
	case errors.As(err, &found):
		t.result.Status, t.result.Detail = Failed, found.messageText
		t.known.failedChecks[t.result.Name] = true
		for _, made := range found.exchanges {
			t.result.Exchanges = append(t.result.Exchanges, made.show())
		}
	case err != nil:
		t.result.Status, t.result.Detail = NotMade, err.Error()
		var reason *notMadeError
		t.result.IsInterrupted = errors.As(err, &reason) && reason.isInterrupted
	case len(t.missingParts) > 0:
		t.result.Status, t.result.Detail = PartlyMade, strings.Join(t.missingParts, "; ")
	default:
		t.result.Status = Passed
	}
}
