package probe

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
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
	r, before, err := t.newCountedRequest(t.service.Failing)
	if err != nil {
		return err
	}
	const tries = 4
	var made []*exchange
	begin := time.Now()
	for i := range tries {
		made = append(made, t.sendOnce(i, r))
		for i > 0 && t.isBlocked(made[i]) && time.Since(begin) < t.service.Bound {
			if err := t.sleep(100 * time.Millisecond); err != nil {
				return err
			}
			made[i] = t.sendOnce(i, r)
			t.longestBlock = time.Since(begin)
		}
		got := made[i]
		switch {
		case i == 0 && (got.answer == nil || got.answer.status < 500 && got.answer.status != http.StatusTooManyRequests):
			return notMade("Service.Failing must be answered with a 5xx or 429, and got %s", got.describe())
		case got.answer == nil:
			return t.failOrEnd(made, "a retry of a failed request got %s", got.describe())
		case got.answer.isSuccess():
			if err := t.requireReplay(got, t.sendTo(i+1, r)); err != nil {
				return err
			}
			if err := t.requireEffects(before, 1, made...); err != nil {
				return err
			}
			return t.decide("failed-request", "free", made...)
		case t.isBlocked(got):
			return fail(made, "a failed request got %s, and its retry %s: the key is blocked", made[0].describe(), got.describe())
		case got.answer.status < http.StatusInternalServerError && got.answer.status != made[0].answer.status &&
			got.answer.status != http.StatusTooManyRequests:
			return fail(made, "a failed request got %s, and its retry %s", made[0].describe(), got.describe())
		}
	}
	if added, isKnown, err := t.effectsSince(before); err != nil {
		return err
	} else if isKnown && added > 1 {
		return fail(made, "the service acted %s for a request that failed: the failure frees the key after the effect", times(added))
	}
	marker, _ := t.compareHeaders(made[0].answer.header, made[1].answer.header)
	if marker == "none" {
		return t.decide("failed-request", "failed", made...)
	}
	return t.decide("failed-request", "kept", made...)
}

// isBlocked reports whether the service asks to come again because the key is in use.
func (t *trial) isBlocked(made *exchange) bool {
	return made.answer != nil && made.answer.asksToComeAgain() && made.answer.status < http.StatusInternalServerError &&
		made.answer.status != http.StatusTooManyRequests
}

// checkTold compares the refusals that the checks before have seen with the draft.
func checkTold(t *trial) error {
	for _, line := range []struct {
		refusal, draft string
		wanted         int
	}{
		{"key-missing", "a request without a required key: the draft wants 400", http.StatusBadRequest},
		{"other-content", "another content with the same key: the draft wants 422", http.StatusUnprocessableEntity},
		{"while-running", "a retry while the first request runs: the draft wants 409", http.StatusConflict},
	} {
		t.note("%s; seen: %s", line.draft, t.describeRefusal(line.refusal, line.wanted))
	}
	t.note("a key: the draft wants it in quotes; seen: %s", describeQuoted(t.known.decisions["key-quoted"]))
	t.note("a retry of a failed request: the draft wants the same answer; seen: %s",
		cmp.Or(t.known.decisions["failed-request"], "not asked"))
	for name, value := range t.service.Decided {
		if t.known.decisions[name] == "" {
			t.addMissing(fmt.Sprintf("Service.Decided demands %s = %s, and no check has seen that decision", name, value))
		}
	}
	return nil
}

// describeQuoted describes the decision key-quoted.
func describeQuoted(decision string) string {
	switch decision {
	case "":
		return "not asked"
	case "same":
		return "the key without quotes is the same key"
	case "another":
		return "the key without quotes is another key"
	case "accepted":
		return "the key without quotes is refused"
	}
	return "the key in quotes is refused with " + decision
}

// describeRefusal describes the refusal with this name, and compares its status with the status of the draft.
func (t *trial) describeRefusal(name string, wanted int) string {
	made := t.known.seenRefusals[name]
	switch {
	case made == nil && t.known.decisions[name] == "":
		return "not asked"
	case made == nil:
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
