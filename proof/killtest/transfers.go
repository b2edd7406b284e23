package killtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
)

// Transfers is the [Witness] of processes whose work is that of [ExecuteTransfers]: an operation charges in one step, and
// moves money between two accounts in the next one, which is a step in a transaction. Transfers has the provider, too.
type Transfers struct {
	provider *Provider
	answers  answers
}

// NewTransfers returns a witness that has heard nothing, for the time of a test.
func NewTransfers(t interface {
	Cleanup(end func())
	Fatal(why ...any)
}) *Transfers {
	return &Transfers{provider: NewProvider(t), answers: make(answers)}
}

// Provider returns the provider that charges for the transfers.
func (tr *Transfers) Provider() *Provider { return tr.provider }

// Kill is [KillAll] for processes whose work is that of [ExecuteTransfers].
func (tr *Transfers) Kill(n int, env ...string) error {
	return KillAll(n, tr, append(env, tr.provider.Env())...)
}

// Buries implements [Witness]. A death explains nothing here.
func (tr *Transfers) Buries(string) {}

// Hears implements [Witness].
func (tr *Transfers) Hears(line string) error {
	words, err := parse(line, map[string]int{"answered": 3})
	if err != nil {
		return err
	}
	return tr.answers.hears(words[1], words[2])
}

// Acknowledged implements [Witness].
func (tr *Transfers) Acknowledged() []string { return tr.answers.keys() }

// ExecuteTransfers returns the work of a process.
func ExecuteTransfers(store idempotency.Store, book Book) (Work, error) {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		Lease: Request.Lease, TTL: Request.TTL, StoreTimeout: Request.Lease, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	transfer := transfer{runner, book, os.Getenv(providerVariable)}
	return func(key idempotency.Key) error {
		answer, err := transfer.execute(context.Background(), key)
		return sayOutcome(key, answer, err)
	}, nil
}

// transfer executes operations that charge and then write rows.
type transfer struct {
	runner   *idempotency.Runner
	book     Book
	provider string // its address
}

// execute returns the answer of the operation of key: the receipt of the provider, and the entry of the rows.
func (t transfer) execute(ctx context.Context, key idempotency.Key) (answer []byte, err error) {
	resp, _, err := t.runner.Do(ctx, key, nil, func(ctx context.Context) (resp idempotency.Response, err error) {
		receipt, err := step.Do(ctx, "charge", func(ctx context.Context) (string, error) { return charge(ctx, t.provider) })
		if err != nil {
			return resp, failedStep(err)
		}
		entry, err := t.book(ctx, receipt)
		if err != nil {
			return resp, failedStep(err)
		}
		return idempotency.Response{Status: 201, Body: []byte(receipt + "-" + entry)}, nil
	})
	return resp.Body, err
}

// Explain completes every operation that the provider knows, and returns an error unless each one has happened exactly once:
// every answer that a process has had is the answer in the store, the rows of an operation are there once and have the
// receipt and the entry of its answer, the provider has charged once for them, and the balances are those of the rows.
func (tr *Transfers) Explain(ctx context.Context, store idempotency.Store, book Book, ledger Ledger) error {
	if err := tr.complete(ctx, store, book); err != nil {
		return err
	}
	rows, err := ledger.Read(ctx)
	if err != nil {
		return err
	}
	faults := []error{tr.answers.requireSome(), tr.provider.Explain(tr.answers.keys()...), tr.Compare(rows)}
	for key, answer := range tr.answers {
		faults = append(faults, requireReplay(ctx, store, key, answer))
	}
	return errors.Join(faults...)
}

// complete repeats every operation that the provider knows until the operation has its answer.
func (tr *Transfers) complete(ctx context.Context, store idempotency.Store, book Book) error {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	transfer := transfer{runner, book, tr.provider.url}
	for _, operation := range tr.provider.operations() {
		answer, err := untilAnswered(func() ([]byte, error) { return transfer.execute(ctx, keyOf(operation)) })
		if err == nil {
			err = tr.answers.hears(operation, string(answer))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", operation, err)
		}
	}
	return nil
}

// untilAnswered repeats an operation until it has its answer.
func untilAnswered(execute func() (answer []byte, err error)) (answer []byte, err error) {
	for began := time.Now(); time.Since(began) < longestWait; time.Sleep(10 * time.Millisecond) {
		if answer, err = execute(); err == nil || !isOrdinary(err) {
			return answer, err
		}
	}
	return nil, fmt.Errorf("it does not complete: %w", err)
}

// Compare returns an error if rows are not those of the answers, each once.
func (tr *Transfers) Compare(rows []Row) error {
	byOperation := make(map[string][]Row)
	for _, row := range rows {
		byOperation[row.Operation] = append(byOperation[row.Operation], row)
	}
	var faults []error
	for operation, rows := range byOperation {
		answer, isAnswered := tr.answers[operation]
		if !isAnswered {
			faults = append(faults, fmt.Errorf("%s has rows and no answer", operation))
			continue
		}
		sum := 0
		for _, row := range rows {
			sum += row.Amount
			if got := row.Receipt + "-" + row.Entry; got != answer {
				faults = append(faults, fmt.Errorf("%s has the answer %s, and a row with %s", operation, answer, got))
			}
		}
		if len(rows) != 2 || sum != 0 {
			faults = append(faults, fmt.Errorf("%s has %d rows, whose sum is %d", operation, len(rows), sum))
		}
	}
	for operation := range tr.answers {
		if len(byOperation[operation]) == 0 {
			faults = append(faults, fmt.Errorf("%s was answered and has no rows", operation))
		}
	}
	return errors.Join(faults...)
}

// String tells the counts.
func (tr *Transfers) String() string {
	return fmt.Sprintf("%d transfers, each with its rows once; %s", len(tr.answers), tr.provider)
}
