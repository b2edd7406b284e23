package probe

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// checkInvalidRequest sends a request that the service refuses, and then a valid request with the same key.
func checkInvalidRequest(t *trial) error {
	key := newKey()
	invalid, err := t.service.newRequest(t.service.Invalid, key)
	if err != nil {
		return err
	}
	before, err := t.countEffects()
	if err != nil {
		return err
	}
	first := t.send(invalid)
	if !isRefusedByClient(first) {
		return notMade("Service.Invalid must be refused with a 4xx, and got %s", first.describe())
	}
	if second := t.send(invalid); second.answer == nil || second.answer.status != first.answer.status {
		return t.failOrEnd([]*exchange{first, second}, "the same refused request got %s, and then %s",
			first.describe(), second.describe())
	}
	if err := t.requireEffects(before, 0, first); err != nil {
		return err
	}
	valid, err := t.service.newRequest(t.service.Request, key)
	if err != nil {
		return err
	}
	return t.judgeKeyAfter("invalid-request", first, valid, before)
}

// judgeKeyAfter sends a valid request with the key of a refused request, and decides whether the key is free.
func (t *trial) judgeKeyAfter(decision string, refused *exchange, valid *request, before int) error {
	made := t.send(valid)
	seen := []*exchange{refused, made}
	switch {
	case made.answer == nil || made.answer.status >= http.StatusInternalServerError && made.answer.status != refused.answer.status:
		return t.failOrEnd(seen, "after a refusal, a valid request with the same key got %s", made.describe())
	case made.answer.isSuccess():
		if err := t.requireReplay(made, t.send(valid)); err != nil {
			return err
		}
		if err := t.requireEffects(before, 1, seen...); err != nil {
			return err
		}
		return t.decide(decision, "free", seen...)
	}
	if again := t.send(valid); again.answer == nil || again.answer.status != made.answer.status {
		return t.failOrEnd(append(seen, again), "after a refusal, a valid request with the same key got %s, and then %s",
			made.describe(), again.describe())
	}
	if err := t.requireEffects(before, 0, seen...); err != nil {
		return err
	}
	return t.decide(decision, "kept", seen...)
}

// checkFailedRequest sends a request that fails, several times.
func checkFailedRequest(t *trial) error {
	r, _, err := t.newRequest(t.service.Failing)
	if err != nil {
		return err
	}
	const tries = 4
	var made []*exchange
	for i := range tries {
		made = append(made, t.sendTo(i, r))
		got := made[i]
		switch {
		case i == 0 && (got.answer == nil || got.answer.status < 500 && got.answer.status != http.StatusTooManyRequests):
			return notMade("Service.Failing must be answered with a 5xx or 429, and got %s", got.describe())
		case got.answer == nil:
			return t.failOrEnd(made, "a retry of a failed request got %s", got.describe())
		case got.answer.isSuccess():
			if err := t.decide("failed-request", "free", made...); err != nil {
				return err
			}
			return t.requireReplay(got, t.sendTo(i+1, r))
		case got.answer.status != made[0].answer.status:
			return fail(made, "a failed request got %s, and its retry %s: the key is blocked", made[0].describe(), got.describe())
		}
	}
	marker, _ := t.compareHeaders(made[0].answer.header, made[1].answer.header)
	if marker == "none" {
		return t.decide("failed-request", "failed", made...)
	}
	return t.decide("failed-request", "kept", made...)
}

// checkTold compares the refusals that the checks before have seen with the draft.
func checkTold(t *trial) error {
	for _, line := range []struct {
		refusal, draft string
		wanted         int
	}{
		{"key-missing", "no key, where keys are required: the draft wants 400", http.StatusBadRequest},
		{"other-content", "another content: the draft wants 422", http.StatusUnprocessableEntity},
		{"while-running", "the first request still runs: the draft wants 409", http.StatusConflict},
	} {
		t.note("%s; seen: %s", line.draft, t.describeRefusal(line.refusal, line.wanted))
	}
	t.note("a key in quotes: the draft wants the quotes; seen: %s", cmp.Or(t.known.decisions["key-quoted"], "not asked"))
	t.note("a failed request: the draft wants its answer again; seen: %s", cmp.Or(t.known.decisions["failed-request"], "not asked"))
	return nil
}

// describeRefusal describes the refusal with this name, and compares its status with the status of the draft.
func (t *trial) describeRefusal(name string, wanted int) string {
	made := t.known.seenRefusals[name]
	if made == nil {
		return "no refusal"
	}
	var parts []string
	if made.answer.status == wanted {
		parts = append(parts, strconv.Itoa(wanted))
	} else {
		parts = append(parts, fmt.Sprintf("%d, unlike the draft", made.answer.status))
	}
	if parsed, ok := parseProblem(made.answer.header, made.answer.body); ok {
		parts = append(parts, "problem+json of type "+parsed.Type)
	} else {
		parts = append(parts, "no problem+json")
	}
	if after := made.answer.header.Get("Retry-After"); after != "" {
		parts = append(parts, "Retry-After: "+after)
	} else if made.answer.asksToComeAgain() {
		parts = append(parts, "no Retry-After")
	}
	return strings.Join(parts, ", ")
}
