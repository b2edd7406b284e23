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

// Execute returns the work of a process with a store whose claims are leases. An operation is charged. Then its effect
// takes place: one write at the end of the file effects, which all processes share. An operation may be executed again
// after a death.
func Execute(store idempotency.Store, effects string) (Work, error) {
	return executing(store, effects, idempotency.ReExecute)
}

// ExecuteOnce is Execute, but what was abandoned is refused until an [Operator] resolves it.
func ExecuteOnce(store idempotency.Store, effects string) (Work, error) {
	return executing(store, effects, idempotency.Refuse)
}

func executing(store idempotency.Store, effects string, abandoned idempotency.Abandoned) (Work, error) {
	file, err := os.OpenFile(effects, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	runner, err := idempotency.NewRunner(strict{store}, idempotency.RunnerOptions{
		Lease: Request.Lease, TTL: Request.TTL, Abandoned: abandoned, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	return func(key idempotency.Key) error { return execute(runner, file, key) }, nil
}

func execute(runner *idempotency.Runner, effects io.Writer, key idempotency.Key) error {
	attempt := "" // none has taken effect
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
	case errors.Is(err, idempotency.ErrInProgress), errors.Is(err, idempotency.ErrOutcomeUnknown): // so not with ReExecute
	case errors.Is(err, idempotency.ErrClaimLost):
		if attempt != "" {
			fmt.Println("lost", attempt)
		}
	case err != nil:
		return err
	case replayed:
		SayAnswered(key, resp.Body)
	default:
		fmt.Printf("ended %s\nanswered %s %s\n", attempt, key.ID, resp.Body) // one write: a death does not part them
	}
	return nil
}

// strict is a store that has time for each step of its claims. An error of the store is a fault, and nobody tries again.
type strict struct{ idempotency.Store }

func (s strict) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	record, claim, err := s.Store.Begin(ctx, key, request)
	fail(err)
	if claim != nil {
		claim = strictClaim{claim}
	}
	return record, claim, nil
}

type strictClaim struct{ idempotency.Claim }

func (c strictClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	err := c.Claim.Complete(ctx, resp, ttl)
	if !errors.Is(err, idempotency.ErrClaimLost) {
		fail(err)
	}
	return err
}

func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// Operations is the [Witness] of processes whose work is that of [Execute]. An attempt is named by process, key and
// number.
type Operations struct {
	answers answers
	ended   map[string]bool // attempts that were acknowledged
	lost    map[string]bool // attempts that have lost their claim, because they took longer than their lease
	killed  map[string]bool // processes
	unseen  map[string]bool // keys that an operator has answered, who did not look
}

// NewOperations returns one that has heard nothing.
func NewOperations() *Operations {
	return &Operations{
		answers: make(answers),
		ended:   make(map[string]bool), lost: make(map[string]bool), killed: make(map[string]bool), unseen: make(map[string]bool),
	}
}

// Buries implements [Witness].
func (o *Operations) Buries(process string) { o.killed[process] = true }

// Hears implements [Witness].
func (o *Operations) Hears(line string) error {
	words, err := parse(line, map[string]int{"answered": 3, "ended": 2, "lost": 2})
	if err != nil {
		return err
	}
	switch words[0] {
	case "answered":
		return o.answers.hears(words[1], words[2])
	case "ended":
		o.ended[words[1]] = true
	case "lost":
		o.lost[words[1]] = true
	}
	return nil
}

// Acknowledged implements [Witness].
func (o *Operations) Acknowledged() []string { return o.answers.keys() }

// Explain reads the file effects, and returns how many of them were repeated because of a death. It returns an error if
// one was repeated for another reason than a death or the loss of its claim, if one was repeated that was acknowledged,
// if an answer has no effect, and if the store has forgotten what was acknowledged.
func (o *Operations) Explain(ctx context.Context, store idempotency.Store, effects string) (repeated int, err error) {
	attempts, err := readAttempts(effects)
	faults := []error{err, o.answers.requireSome()}
	for key, answer := range o.answers {
		faults = append(faults, requireReplay(ctx, store, key, answer))
		if len(attempts[key]) == 0 && !o.unseen[key] {
			faults = append(faults, fmt.Errorf("%s was answered and not executed", key))
		}
	}
	for _, all := range attempts {
		for _, attempt := range all[:len(all)-1] {
			if err := o.explain(attempt); err != nil {
				faults = append(faults, fmt.Errorf("%w: %v", err, all))
			}
			if !o.lost[attempt] {
				repeated++
			}
		}
	}
	return repeated, errors.Join(faults...)
}

// explain returns an error if an attempt should not have been repeated.
func (o *Operations) explain(attempt string) error {
	process, _, _ := strings.Cut(attempt, "/")
	switch {
	case o.ended[attempt]:
		return fmt.Errorf("%s was acknowledged and repeated", attempt)
	case !o.killed[process] && !o.lost[attempt]:
		return fmt.Errorf("%s was repeated without a cause", attempt)
	}
	return nil
}

// readAttempts returns the attempts that have taken effect by key, in order.
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
