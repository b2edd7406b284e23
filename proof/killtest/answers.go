package killtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/idempotency-go/idempotency"
)

// answers are the answers that were acknowledged, by key.
type answers map[string]string

// hears takes an answer. A key has one.
func (a answers) hears(key, answer string) error {
	was, ok := a[key]
	if ok && was != answer {
		return fmt.Errorf("%s has two answers: %s and %s", key, was, answer)
	}
	a[key] = answer
	return nil
}

func (a answers) keys() []string { return slices.Collect(maps.Keys(a)) }

// requireSome returns an error if nothing was acknowledged, and so nothing is shown.
func (a answers) requireSome() error {
	if len(a) == 0 {
		return errors.New("no process has acknowledged anything")
	}
	return nil
}

// requireReplay returns an error if a store does not replay the answer of a key.
func requireReplay(ctx context.Context, store idempotency.Store, key, answer string) error {
	record, claim, err := store.Begin(ctx, keyOf(key), Request)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", key, err)
	case claim != nil:
		return errors.Join(fmt.Errorf("%s is claimed again: its record is lost", key), claim.Release(ctx, Request.TTL))
	case record.Response == nil:
		return fmt.Errorf("%s has no answer in the store", key)
	case string(record.Response.Body) != answer:
		return fmt.Errorf("%s has the answer %s in the store, and not %s", key, record.Response.Body, answer)
	}
	return nil
}

// parse returns the words of a line. The first one says what has happened. Wanted says how many words such a line has.
func parse(line string, wanted map[string]int) ([]string, error) {
	words := strings.Fields(line)
	if len(words) == 0 || wanted[words[0]] == 0 || wanted[words[0]] != len(words) {
		return nil, fmt.Errorf("a process has said: %s", strings.TrimSpace(line))
	}
	return words, nil
}
