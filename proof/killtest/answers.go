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

// answers are the acknowledged answers by key.
type answers map[string]string

// addAnswer adds the answer of key, and returns an error if key already has a different answer.
func (a answers) addAnswer(key, answer string) error {
	previous, ok := a[key]
	if ok && previous != answer {
		return fmt.Errorf("%s has two answers: %s and %s", key, previous, answer)
	}
	a[key] = answer
	return nil
}

func (a answers) keys() []string { return slices.Collect(maps.Keys(a)) }

// requireSome returns an error if there is no answer, because the test has then shown nothing.
func (a answers) requireSome() error {
	if len(a) == 0 {
		return errors.New("no process has acknowledged anything")
	}
	return nil
}

// requireReplay returns an error unless store replays answer for key.
func requireReplay(ctx context.Context, store idempotency.Store, key, answer string) error {
	record, claim, err := store.Begin(ctx, keyOf(key), Request)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", key, err)
	case claim != nil:
		return errors.Join(fmt.Errorf("%s is claimed again: its record is lost", key), claim.Release(ctx, idempotency.Release{TTL: Request.TTL}))
	case record.Response == nil:
		return fmt.Errorf("%s has no answer in the store", key)
	case string(record.Response.Body) != answer:
		return fmt.Errorf("%s has the answer %s in the store, and not %s", key, record.Response.Body, answer)
	}
	return nil
}

// parseLine returns the words of a line. The first word is the kind of the line, and wordCounts has the number of
// words for each kind.
func parseLine(line string, wordCounts map[string]int) ([]string, error) {
	words := strings.Fields(line)
	if len(words) == 0 || wordCounts[words[0]] == 0 || wordCounts[words[0]] != len(words) {
		return nil, fmt.Errorf("a process has said: %s", strings.TrimSpace(line))
	}
	return words, nil
}
