package killtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// StepProvider is a fake provider that performs the steps of operations, and the [Witness] of the processes that call
// the provider. The provider is a server in the process of the test, which is not killed. The provider records each
// call, and finds faults.
//
// An operation has three steps. Operations whose ID ends in 1 use [step.AtMostOnce].
type StepProvider struct {
	url     string
	answers answers

	mu            sync.Mutex
	stepByName    map[string]*stepState // by "operation step"
	callCount     int
	repeatedCalls int // calls that repeat a call whose result was lost
	lookupCount   int // questions about the outcome of a step
	faults        []error
}

// stepState is the state of a step at the provider.
type stepState struct {
	callCount    int
	firstReceipt string // receipt of the first call
	isVoid       bool   // the provider refuses further calls
	finishedBy   int    // number of the first attempt that has reported the result; zero: none
	storedResult string // reported result of that attempt
}

// stepNames are the steps of each operation.
var stepNames = []string{"reserve", "charge", "ship"}

// NewStepProvider starts a provider for the duration of the test t.
func NewStepProvider(t interface {
	Cleanup(end func())
	Fatal(why ...any)
}) *StepProvider {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &StepProvider{
		url: "http://" + listener.Addr().String(), answers: make(answers), stepByName: make(map[string]*stepState),
	}
	server := http.Server{Handler: http.HandlerFunc(p.serveStep)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return p
}

// Kill is [KillAll] for processes that run [ExecuteSteps]. Kill kills each process within 0.2 seconds.
func (p *StepProvider) Kill(n int, env ...string) error {
	return killAll(n, 200*time.Millisecond, p, append(env, providerVariable+"="+p.url))
}

// RecordLine implements [Witness].
func (p *StepProvider) RecordLine(line string) error {
	words, err := parseLine(line, map[string]int{"answered": 3})
	if err != nil {
		return err
	}
	return p.answers.addAnswer(words[1], words[2])
}

// RecordKill implements [Witness].
func (p *StepProvider) RecordKill(string) {}

// Acknowledged implements [Witness].
func (p *StepProvider) Acknowledged() []string { return p.answers.keys() }

func (p *StepProvider) serveStep(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ask := r.URL.Query()
	attempt, _ := strconv.Atoi(ask.Get("attempt"))
	name := ask.Get("operation") + " " + ask.Get("step")
	known := p.stepByName[name]
	if known == nil {
		known = new(stepState)
		p.stepByName[name] = known
	}
	switch r.URL.Path {
	case "/call":
		p.recordCall(w, name, known, attempt, ask.Has("once"))
	case "/ask":
		p.lookupCount++
		known.isVoid = known.isVoid || known.callCount == 0
		fmt.Fprint(w, cmp.Or(known.firstReceipt, "void"))
	case "/finished":
		p.recordResult(name, known, attempt, ask.Get("result"))
	}
}

// recordCall performs a step. Only attempts up to the attempt that has finished the step may call the step again,
// because an overtaken attempt may be late.
func (p *StepProvider) recordCall(w http.ResponseWriter, name string, known *stepState, attempt int, once bool) {
	if known.isVoid {
		http.Error(w, "void", http.StatusConflict)
		return
	}
	p.callCount++
	known.callCount++
	switch {
	case known.callCount > 1 && once:
		p.addFault("%s was called %d times", name, known.callCount)
	case known.callCount > 1:
		p.repeatedCalls++
	}
	if known.finishedBy > 0 && attempt > known.finishedBy {
		p.addFault("%s was finished by attempt %d, and called by attempt %d", name, known.finishedBy, attempt)
	}
	receipt := rand.Text() // each call has a different receipt, so that a lost result becomes visible
	known.firstReceipt = cmp.Or(known.firstReceipt, receipt)
	fmt.Fprint(w, receipt)
}

// recordResult records the result of a step as an attempt reports the result.
func (p *StepProvider) recordResult(name string, known *stepState, attempt int, result string) {
	switch {
	case known.finishedBy == 0:
		known.finishedBy, known.storedResult = attempt, result
	case known.storedResult != result:
		p.addFault("%s has the results %s and %s", name, known.storedResult, result)
	}
}

func (p *StepProvider) addFault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf(format, args...))
}

// ExecuteSteps returns the work of a process with operations in steps.
func ExecuteSteps(store idempotency.Store) (Work, error) {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		Lease: Request.Lease, TTL: Request.TTL, StoreTimeout: Request.Lease, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	provider := os.Getenv(providerVariable)
	return func(key idempotency.Key) error {
		answer, err := executeSteps(context.Background(), runner, provider, key)
		return reportOutcome(key, answer, err)
	}, nil
}

// executeSteps runs the operation of key, and returns the answer.
func executeSteps(
	ctx context.Context, runner *idempotency.Runner, provider string, key idempotency.Key,
) (answer []byte, err error) {
	resp, _, err := runner.Do(ctx, key, nil, func(ctx context.Context) (idempotency.Response, error) {
		return runSteps(ctx, provider)
	})
	return resp.Body, err
}

// reportOutcome reports the answer of an operation. An ordinary error is ignored, because for example an attempt that
// has lost its claim has no answer. reportOutcome returns any other error.
func reportOutcome(key idempotency.Key, answer []byte, err error) error {
	switch {
	case err == nil:
		SayAnswered(key, answer)
	case !isOrdinary(err):
		return err
	}
	return nil
}

// isOrdinary reports whether err is expected after kills of other processes, or on a slow machine.
func isOrdinary(err error) bool {
	if isFault(err) {
		return false
	}
	for _, ordinary := range []error{
		idempotency.ErrInProgress, idempotency.ErrClaimLost, idempotency.ErrUnavailable,
		context.Canceled, context.DeadlineExceeded, errStep,
	} {
		if errors.Is(err, ordinary) {
			return true
		}
	}
	return false
}

// errStep is the error of a step that a later attempt runs again, for example because the store was too slow.
var errStep = errors.New("a step has failed")

// failedStep wraps the error of a step in errStep.
func failedStep(err error) error { return fmt.Errorf("%w: %w", errStep, err) }

// isFault reports whether err wraps an error that no step should return.
func isFault(err error) bool {
	for _, fault := range []error{step.ErrMisuse, step.ErrResult, step.ErrNoClaim, errors.ErrUnsupported} {
		if errors.Is(err, fault) {
			return true
		}
	}
	return false
}

func runSteps(ctx context.Context, provider string) (idempotency.Response, error) {
	op, _ := idempotency.FromContext(ctx)
	a := stepAttempt{
		providerURL: provider, operationID: op.Key.ID, attemptNumber: strconv.Itoa(op.Attempt),
		isAtMostOnce: strings.HasSuffix(op.Key.ID, "1"),
	}
	var results []string
	for _, name := range stepNames {
		result, err := a.runStep(ctx, name)
		if err != nil {
			return idempotency.Response{}, failedStep(err)
		}
		if _, err := a.askProvider(ctx, "/finished", name, result); err != nil {
			return idempotency.Response{}, err
		}
		results = append(results, result)
	}
	return idempotency.Response{Status: 201, Body: []byte(strings.Join(results, "-"))}, nil
}

// stepAttempt is an attempt at an operation with steps.
type stepAttempt struct {
	providerURL, operationID, attemptNumber string
	isAtMostOnce                            bool
}

func (a stepAttempt) runStep(ctx context.Context, name string) (string, error) {
	call := func(ctx context.Context) (string, error) { return a.askProvider(ctx, "/call", name, "") }
	if !a.isAtMostOnce {
		return step.Do(ctx, name, call)
	}
	return step.AtMostOnce(ctx, name, call, func(ctx context.Context) (string, error) {
		return a.askProvider(ctx, "/ask", name, "")
	})
}

// askProvider sends a request to the provider, and returns the text of the answer.
func (a stepAttempt) askProvider(ctx context.Context, path, name, result string) (string, error) {
	query := url.Values{"operation": {a.operationID}, "attempt": {a.attemptNumber}, "step": {name}, "result": {result}}
	if a.isAtMostOnce {
		query.Set("once", "")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.providerURL+path+"?"+query.Encode(), nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(r)
	if err != nil {
		return "", cmp.Or(context.Cause(ctx), err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%w: %s: %s", errStep, path, text) // another attempt has voided the step
	}
	return string(text), err
}

// Explain completes all operations that have begun, and returns all faults joined: forbidden calls, lost results, and
// operations that do not complete.
func (p *StepProvider) Explain(ctx context.Context, store idempotency.Store) error {
	faults := []error{p.answers.requireSome()}
	for _, operation := range p.knownOperations() {
		if err := p.completeOperation(ctx, store, operation); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", operation, err))
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for operation, answer := range p.answers {
		for i, result := range strings.Split(answer, "-") {
			known := p.stepByName[operation+" "+stepNames[i]]
			if known == nil || known.storedResult != result {
				faults = append(faults, fmt.Errorf("%s: its answer has %s for step %s", operation, result, stepNames[i]))
			}
		}
	}
	return errors.Join(append(faults, p.faults...)...)
}

// knownOperations returns the operations of all calls in order.
func (p *StepProvider) knownOperations() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make(map[string]bool)
	for name := range p.stepByName {
		operation, _, _ := strings.Cut(name, " ")
		all[operation] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// completeOperation repeats an operation until the operation has an answer.
func (p *StepProvider) completeOperation(ctx context.Context, store idempotency.Store, operation string) error {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	answer, err := repeatUntilAnswered(func() ([]byte, error) { return executeSteps(ctx, runner, p.url, keyOf(operation)) })
	if err != nil {
		return err
	}
	return p.answers.addAnswer(operation, string(answer))
}

// Count writes the counts as attributes to the output of the test t.
func (p *StepProvider) Count(t interface{ Attr(key, value string) }) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Attr("operations-with-steps", strconv.Itoa(len(p.answers)))
	t.Attr("calls-of-the-provider", strconv.Itoa(p.callCount))
	t.Attr("calls-again-of-lost-results", strconv.Itoa(p.repeatedCalls))
}

// String returns the counts as text.
func (p *StepProvider) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("%d operations, %d steps, %d calls of the provider: %d repeated, whose results were lost; %d times asked",
		len(p.answers), len(p.stepByName), p.callCount, p.repeatedCalls, p.lookupCount)
}
