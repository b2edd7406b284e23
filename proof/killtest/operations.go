package killtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Execute returns the work of a process. The claims of store are leases. The operation is charged, and then has its
// effect: a single write at the end of the file effects, which all processes share. An operation may be executed
// again after a kill.
func Execute(store idempotency.Store, effects string) (Work, error) {
	return newWork(store, effects, idempotency.ReExecute)
}

// ExecuteOnce is Execute, except that an abandoned operation is refused until an [Operator] resolves the operation.
func ExecuteOnce(store idempotency.Store, effects string) (Work, error) {
	return newWork(store, effects, idempotency.Refuse)
}

func newWork(store idempotency.Store, effects string, abandoned idempotency.Abandoned) (Work, error) {
	file, err := os.OpenFile(effects, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	runner, err := idempotency.NewRunner(strictStore{store}, idempotency.RunnerOptions{
		Lease: Request.Lease, TTL: Request.TTL, Abandoned: abandoned, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return func(key idempotency.Key) error { return executeOperation(runner, file, key) }, nil
}

// executeOperation runs the operation of key, and reports the outcome.
func executeOperation(runner *idempotency.Runner, effects io.Writer, key idempotency.Key) error {
	attempt := "" // empty until this attempt has its effect
	resp, replayed, err := runner.Do(context.Background(), key, nil, func(ctx context.Context) (idempotency.Response, error) {
		if err := Charge(ctx); err != nil {
			return idempotency.Response{}, cmp.Or(context.Cause(ctx), err)
		}
		op, _ := idempotency.FromContext(ctx)
		attempt = fmt.Sprintf("%s/%s/%d", os.Getenv(nameVariable), key.ID, op.Attempt)
		_, err := io.WriteString(effects, attempt+"\n")
		return idempotency.Response{Status: 201, Body: []byte(rand.Text())}, err
	})
	switch {
	case errors.Is(err, idempotency.ErrInProgress), errors.Is(err, idempotency.ErrOutcomeUnknown): // only with Refuse
	case errors.Is(err, idempotency.ErrClaimLost):
		if attempt != "" {
			fmt.Println("lost", attempt)
		}
	case err != nil:
		return err
	case replayed:
		SayAnswered(key, resp.Body)
	default:
		fmt.Printf("ended %s\nanswered %s %s\n", attempt, key.ID, resp.Body) // one write, so that a kill cannot part the lines
	}
	return nil
}

// strictStore gives each call of a store a minute, and reports an error of the store as a fault.
type strictStore struct{ idempotency.Store }

func (s strictStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	record, claim, err := s.Store.Begin(ctx, key, request)
	reportFailure(err)
	if claim != nil {
		claim = strictClaim{claim}
	}
	return record, claim, nil
}

type strictClaim struct{ idempotency.Claim }

func (c strictClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	ctx, cancel := withStoreTimeout(ctx)
	defer cancel()
	err := c.Claim.Complete(ctx, resp, ttl)
	if !errors.Is(err, idempotency.ErrClaimLost) {
		reportFailure(err)
	}
	return err
}

// withStoreTimeout returns a context that ends after a minute, even if ctx ends earlier.
func withStoreTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// Operations is the [Witness] of processes that run [Execute]. The name of an attempt consists of process, key and
// number.
type Operations struct {
	answers         answers
	endedAttempts   map[string]bool // acknowledged attempts
	lostAttempts    map[string]bool // attempts that lost their claim, because they took longer than the lease
	killedProcesses map[string]bool
	operatorKeys    map[string]bool // keys with the answer of an [Operator], which decides without regard to the effect
}

// NewOperations returns a witness without records.
func NewOperations() *Operations {
	return &Operations{
		answers:       make(answers),
		endedAttempts: make(map[string]bool), lostAttempts: make(map[string]bool), killedProcesses: make(map[string]bool),
		operatorKeys: make(map[string]bool),
	}
}

// RecordKill implements [Witness].
func (o *Operations) RecordKill(process string) { o.killedProcesses[process] = true }

// RecordLine implements [Witness].
func (o *Operations) RecordLine(line string) error {
	words, err := parseLine(line, map[string]int{"answered": 3, "ended": 2, "lost": 2})
	if err != nil {
		return err
	}
	switch words[0] {
	case "answered":
		return o.answers.addAnswer(words[1], words[2])
	case "ended":
		o.endedAttempts[words[1]] = true
	case "lost":
		o.lostAttempts[words[1]] = true
	}
	return nil
}

// Acknowledged implements [Witness].
func (o *Operations) Acknowledged() []string { return o.answers.keys() }

// Explain reads the file effects, and returns the number of effects that were repeated because of a kill. Explain
// returns an error in these cases:
//
//   - An effect was repeated although the process was not killed and the attempt did not lose its claim.
//   - An effect was repeated although the attempt was acknowledged.
//   - An answer has no effect.
//   - The store does not replay an acknowledged answer.
func (o *Operations) Explain(ctx context.Context, store idempotency.Store, effects string) (repeated int, err error) {
	attempts, err := readAttempts(effects)
	faults := []error{err, o.answers.requireSome()}
	for key, answer := range o.answers {
		faults = append(faults, requireReplay(ctx, store, key, answer))
		if len(attempts[key]) == 0 && !o.operatorKeys[key] {
			faults = append(faults, fmt.Errorf("%s was answered and not executed", key))
		}
	}
	for _, all := range attempts {
		for _, attempt := range all[:len(all)-1] {
			if err := o.explainRepetition(attempt); err != nil {
				faults = append(faults, fmt.Errorf("%w: %v", err, all))
			}
			if !o.lostAttempts[attempt] {
				repeated++
			}
		}
	}
	return repeated, errors.Join(faults...)
}

// explainRepetition returns an error unless the repetition of an attempt has a cause.
func (o *Operations) explainRepetition(attempt string) error {
	process, _, _ := strings.Cut(attempt, "/")
	switch {
	case o.endedAttempts[attempt]:
		return fmt.Errorf("%s was acknowledged and repeated", attempt)
	case !o.killedProcesses[process] && !o.lostAttempts[attempt]:
		return fmt.Errorf("%s was repeated without a cause", attempt)
	}
	return nil
}

// readAttempts returns the attempts with an effect by key, in order.
func readAttempts(effects string) (map[string][]string, error) {
	text, err := os.ReadFile(effects)
	if err != nil {
		return nil, err
	}
	attempts := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		attempt := strings.TrimSpace(line)
		_, rest, _ := strings.Cut(attempt, "/")
		key, _, _ := strings.Cut(rest, "/")
		attempts[key] = append(attempts[key], attempt)
	}
	return attempts, nil
}
