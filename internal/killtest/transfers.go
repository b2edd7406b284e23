package killtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

// Transfers is the [Witness] of processes whose effects are a part of the transaction of the store. They call
// [SayAnswered] and [SayOvertaken].
type Transfers struct {
	answers   answers
	overtaken int
}

// NewTransfers returns one that has heard nothing.
func NewTransfers() *Transfers { return &Transfers{answers: make(answers)} }

// Buries implements [Witness]. A death explains nothing here.
func (tr *Transfers) Buries(string) {}

// Hears implements [Witness].
func (tr *Transfers) Hears(line string) error {
	words, err := parse(line, map[string]int{"answered": 3, "overtaken": 2})
	if err != nil {
		return err
	}
	if words[0] == "overtaken" {
		tr.overtaken++
		return nil
	}
	return tr.answers.hears(words[1], words[2])
}

// Acknowledged implements [Witness].
func (tr *Transfers) Acknowledged() []string { return tr.answers.keys() }

// Overtaken returns how many attempts were overtaken.
func (tr *Transfers) Overtaken() int { return tr.overtaken }

// Explain takes the answers of the transfers that were made, by key. It returns an error if one was made twice, if one
// was acknowledged and not made, and if the store does not replay the answer of each.
func (tr *Transfers) Explain(ctx context.Context, store idempotency.Store, made map[string][]string) error {
	faults := []error{tr.answers.requireSome()}
	for key, answer := range tr.answers {
		if len(made[key]) == 0 {
			faults = append(faults, fmt.Errorf("%s was answered and not made", key))
		}
		faults = append(faults, requireReplay(ctx, store, key, answer))
	}
	for key, all := range made {
		if len(all) > 1 {
			faults = append(faults, fmt.Errorf("%s was made %d times: %v", key, len(all), all))
		}
		faults = append(faults, requireReplay(ctx, store, key, all[0]))
	}
	return errors.Join(faults...)
}
