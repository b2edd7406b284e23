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

// Transfers is the [Witness] of processes that run [ExecuteTransfers]. An operation charges in its first step, and
// moves money between two accounts in its second step, which runs in a transaction. Transfers also has the provider.
type Transfers struct {
	provider *Provider
	answers  answers
}

// NewTransfers returns a witness without records, and starts the provider for the duration of the test t.
func NewTransfers(t interface {
	Cleanup(end func())
	Fatal(why ...any)
}) *Transfers {
	return &Transfers{provider: NewProvider(t), answers: make(answers)}
}

// Provider returns the provider that charges for the transfers.
func (tr *Transfers) Provider() *Provider { return tr.provider }

// Kill is [KillAll] for processes that run [ExecuteTransfers].
func (tr *Transfers) Kill(n int, env ...string) error {
	return KillAll(n, tr, append(env, tr.provider.Env())...)
}

// RecordKill implements [Witness]. The kills do not matter, because a kill excuses no fault of a transfer.
func (tr *Transfers) RecordKill(string) {}

// RecordLine implements [Witness].
func (tr *Transfers) RecordLine(line string) error {
	words, err := parseLine(line, map[string]int{"answered": 3})
	if err != nil {
		return err
	}
	return tr.answers.addAnswer(words[1], words[2])
}

// Acknowledged implements [Witness].
func (tr *Transfers) Acknowledged() []string { return tr.answers.keys() }

// ExecuteTransfers returns the work of a process. Each operation charges, and then writes rows with book.
func ExecuteTransfers(store idempotency.Store, book Book) (Work, error) {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{
		Lease: Request.Lease, TTL: Request.TTL, StoreTimeout: Request.Lease, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	transfer := transfer{runner, book, os.Getenv(providerVariable)}
	return func(key idempotency.Key) error {
		answer, err := transfer.executeTransfer(context.Background(), key)
		return reportOutcome(key, answer, err)
	}, nil
}

// transfer executes operations for [ExecuteTransfers].
type transfer struct {
	runner      *idempotency.Runner
	writeRows   Book
	providerURL string
}

// executeTransfer runs the operation of key, and returns the answer: the receipt of the provider and the entry of the
// rows.
func (t transfer) executeTransfer(ctx context.Context, key idempotency.Key) (answer []byte, err error) {
	resp, _, err := t.runner.Do(ctx, key, nil, func(ctx context.Context) (resp idempotency.Response, err error) {
		receipt, err := step.Do(ctx, "charge", func(ctx context.Context) (string, error) {
			return requestCharge(ctx, t.providerURL)
		})
		if err != nil {
			return resp, failedStep(err)
		}
		entry, err := t.writeRows(ctx, receipt)
		if err != nil {
			return resp, failedStep(err)
		}
		return idempotency.Response{Status: 201, Body: []byte(receipt + "-" + entry)}, nil
	})
	return resp.Body, err
}

// Explain completes all operations of the provider, and returns an error unless each operation has happened exactly
// once:
//
//   - The store replays each answer that a process has received.
//   - Each operation has its rows once, with the receipt and the entry of the answer.
//   - The provider has charged once for each operation.
//   - The balance of each account is the sum of its rows.
func (tr *Transfers) Explain(ctx context.Context, store idempotency.Store, book Book, ledger Ledger) error {
	if err := tr.completeAll(ctx, store, book); err != nil {
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

// completeAll repeats each operation of the provider until the operation has an answer.
func (tr *Transfers) completeAll(ctx context.Context, store idempotency.Store, book Book) error {
	runner, err := idempotency.NewRunner(store, idempotency.RunnerOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	transfer := transfer{runner, book, tr.provider.url}
	for _, operation := range tr.provider.knownOperations() {
		answer, err := repeatUntilAnswered(func() ([]byte, error) { return transfer.executeTransfer(ctx, keyOf(operation)) })
		if err == nil {
			err = tr.answers.addAnswer(operation, string(answer))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", operation, err)
		}
	}
	return nil
}

// repeatUntilAnswered calls execute until the operation has an answer or fails with an error that is not ordinary.
func repeatUntilAnswered(execute func() (answer []byte, err error)) (answer []byte, err error) {
	for began := time.Now(); time.Since(began) < longestWait; time.Sleep(10 * time.Millisecond) {
		if answer, err = execute(); err == nil || !isOrdinary(err) {
			return answer, err
		}
	}
	return nil, fmt.Errorf("the operation does not complete: %w", err)
}

// Compare returns an error unless rows has the two rows of each answer exactly once.
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

// String returns the counts as text.
func (tr *Transfers) String() string {
	return fmt.Sprintf("%d transfers, each with its rows once; %s", len(tr.answers), tr.provider)
}
