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

// Errands is a provider that does the steps of operations, and the [Witness] of the processes that ask it for them. It is
// a server in the process of the test, which nobody kills. It keeps a journal of each call, and finds the faults.
//
// An operation has three steps. Those of every other operation are done at most once, by [step.AtMostOnce].
type Errands struct {
	url     string
	answers answers

	mu     sync.Mutex
	steps  map[string]*errand // by operation and step
	calls  int
	again  int // calls that repeat one whose result is lost
	asked  int // steps of which somebody had to ask
	faults []error
}

// errand is what the provider knows of a step.
type errand struct {
	calls    int
	receipt  string // of the first call
	void     bool   // nobody may call any more
	finished int    // the number of the attempt that has stored the result; zero: none has said so
	result   string // which that attempt has stored
}

var errandSteps = []string{"reserve", "charge", "ship"}

// NewErrands returns a provider that has done nothing, for the time of a test.
func NewErrands(t interface {
	Cleanup(end func())
	Fatal(why ...any)
}) *Errands {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &Errands{
		url: "http://" + listener.Addr().String(), answers: make(answers), steps: make(map[string]*errand),
	}
	server := http.Server{Handler: http.HandlerFunc(e.serve)}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return e
}

// Kill is [KillAll] for processes whose work is that of [ExecuteSteps]. It kills each within a fifth of a second.
func (e *Errands) Kill(n int, env ...string) error {
	return killAll(n, 200*time.Millisecond, e, append(env, providerVariable+"="+e.url))
}

// Hears implements [Witness].
func (e *Errands) Hears(line string) error {
	words, err := parse(line, map[string]int{"answered": 3})
	if err != nil {
		return err
	}
	return e.answers.hears(words[1], words[2])
}

// Buries implements [Witness].
func (e *Errands) Buries(string) {}

// Acknowledged implements [Witness].
func (e *Errands) Acknowledged() []string { return e.answers.keys() }

func (e *Errands) serve(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ask := r.URL.Query()
	attempt, _ := strconv.Atoi(ask.Get("attempt"))
	name := ask.Get("operation") + " " + ask.Get("step")
	known := e.steps[name]
	if known == nil {
		known = new(errand)
		e.steps[name] = known
	}
	switch r.URL.Path {
	case "/call":
		e.call(w, name, known, attempt, ask.Has("once"))
	case "/ask":
		e.asked++
		known.void = known.void || known.calls == 0
		fmt.Fprint(w, cmp.Or(known.receipt, "void"))
	case "/finished":
		e.finish(name, known, attempt, ask.Get("result"))
	}
}

// call does a step. An attempt that was overtaken may repeat a step that is finished. No later one may.
func (e *Errands) call(w http.ResponseWriter, name string, known *errand, attempt int, once bool) {
	if known.void {
		http.Error(w, "void", http.StatusConflict)
		return
	}
	e.calls++
	known.calls++
	switch {
	case known.calls > 1 && once:
		e.fault("%s was called %d times", name, known.calls)
	case known.calls > 1:
		e.again++
	}
	if known.finished > 0 && attempt > known.finished {
		e.fault("%s was finished by attempt %d, and called by attempt %d", name, known.finished, attempt)
	}
	receipt := rand.Text() // each call has its own, so that a lost result shows
	known.receipt = cmp.Or(known.receipt, receipt)
	fmt.Fprint(w, receipt)
}

// finish notes the result that an attempt has got for a step.
func (e *Errands) finish(name string, known *errand, attempt int, result string) {
	switch {
	case known.finished == 0:
		known.finished, known.result = attempt, result
	case known.result != result:
		e.fault("%s has the results %s and %s", name, known.result, result)
	}
}

func (e *Errands) fault(format string, args ...any) {
	e.faults = append(e.faults, fmt.Errorf(format, args...))
}

// ExecuteSteps returns the work of a process whose operations have steps.
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
		return sayOutcome(key, answer, err)
	}, nil
}

// executeSteps returns the answer of the operation of key.
func executeSteps(
	ctx context.Context, runner *idempotency.Runner, provider string, key idempotency.Key,
) (answer []byte, err error) {
	resp, _, err := runner.Do(ctx, key, nil, func(ctx context.Context) (idempotency.Response, error) {
		return runSteps(ctx, provider)
	})
	return resp.Body, err
}

// sayOutcome says the answer of an operation, unless it has failed with an ordinary error: the answer of an attempt that has
// lost its claim is none.
func sayOutcome(key idempotency.Key, answer []byte, err error) error {
	switch {
	case err == nil:
		SayAnswered(key, answer)
	case !isOrdinary(err):
		return err
	}
	return nil
}

// isOrdinary reports whether an error is one that processes get when others have died, or when the machine is slow.
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

// errStep is the error of a step that a later attempt runs again, because the store was too slow, say.
var errStep = errors.New("a step has failed")

// failedStep returns the error of a step, as an errStep.
func failedStep(err error) error { return fmt.Errorf("%w: %w", errStep, err) }

// isFault reports whether no step should have failed with an error, whatever else the error is.
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
	e := errandsOf{
		provider: provider, operation: op.Key.ID, attempt: strconv.Itoa(op.Attempt), once: strings.HasSuffix(op.Key.ID, "1"),
	}
	var results []string
	for _, name := range errandSteps {
		result, err := e.run(ctx, name)
		if err != nil {
			return idempotency.Response{}, failedStep(err)
		}
		if _, err := e.ask(ctx, "/finished", name, result); err != nil {
			return idempotency.Response{}, err
		}
		results = append(results, result)
	}
	return idempotency.Response{Status: 201, Body: []byte(strings.Join(results, "-"))}, nil
}

// errandsOf is one attempt at an operation.
type errandsOf struct {
	provider, operation, attempt string
	once                         bool
}

func (e errandsOf) run(ctx context.Context, name string) (string, error) {
	call := func(ctx context.Context) (string, error) { return e.ask(ctx, "/call", name, "") }
	if !e.once {
		return step.Do(ctx, name, call)
	}
	return step.AtMostOnce(ctx, name, call, func(ctx context.Context) (string, error) { return e.ask(ctx, "/ask", name, "") })
}

// ask asks the provider.
func (e errandsOf) ask(ctx context.Context, path, name, result string) (string, error) {
	query := url.Values{"operation": {e.operation}, "attempt": {e.attempt}, "step": {name}, "result": {result}}
	if e.once {
		query.Set("once", "")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.provider+path+"?"+query.Encode(), nil)
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
		err = fmt.Errorf("%w: %s: %s", errStep, path, text) // another attempt has made sure that nobody calls
	}
	return string(text), err
}

// Explain brings the operations that have begun to their ends, and returns an error if there was a fault: a call that
// should not have been made, a result that was lost, or an operation that does not complete.
func (e *Errands) Explain(ctx context.Context, store idempotency.Store) error {
	faults := []error{e.answers.requireSome()}
	for _, operation := range e.operations() {
		if err := e.complete(ctx, store, operation); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", operation, err))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for operation, answer := range e.answers {
		for i, result := range strings.Split(answer, "-") {
			known := e.steps[operation+" "+errandSteps[i]]
			if known == nil || known.result != result {
				faults = append(faults, fmt.Errorf("%s: its answer has %s for step %s", operation, result, errandSteps[i]))
			}
		}
	}
	return errors.Join(append(faults, e.faults...)...)
}

func (e *Errands) operations() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make(map[string]bool)
	for name := range e.steps {
		operation, _, _ := strings.Cut(name, " ")
		all[operation] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// complete repeats an operation until it has its answer.
func (e *Errands) complete(ctx context.Context, store idempotency.Store, operation string) error {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	answer, err := untilAnswered(func() ([]byte, error) { return executeSteps(ctx, runner, e.url, keyOf(operation)) })
	if err != nil {
		return err
	}
	return e.answers.hears(operation, string(answer))
}

// Count writes the counts to the output of a test, as attributes.
func (e *Errands) Count(t interface{ Attr(key, value string) }) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t.Attr("operations-with-steps", strconv.Itoa(len(e.answers)))
	t.Attr("calls-of-the-provider", strconv.Itoa(e.calls))
	t.Attr("calls-again-of-lost-results", strconv.Itoa(e.again))
}

// String tells the counts.
func (e *Errands) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return fmt.Sprintf("%d operations, %d steps, %d calls of the provider: %d repeated, whose results were lost; %d times asked",
		len(e.answers), len(e.steps), e.calls, e.again, e.asked)
}
