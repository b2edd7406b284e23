package probe

import (
	"net/http"
	"strings"
)

// judgeKey sends r twice, with a key of an unusual form. The service may refuse r with a 4xx, or execute r once. If
// isProtected is false, the service may execute r each time, because r has no key.
func (t *trial) judgeKey(decision string, r *request, isProtected bool) (first *exchange, err error) {
	before, err := t.countEffects()
	if err != nil {
		return nil, err
	}
	first = t.send(r)
	switch {
	case first.answer == nil:
		return first, t.failOrEnd([]*exchange{first}, "the request got %s", first.describe())
	case first.answer.status >= http.StatusInternalServerError:
		return first, t.failOrEnd([]*exchange{first}, "the service blames itself for a key of the client: %s", first.describe())
	case !first.answer.isSuccess():
		t.known.seenRefusals[decision] = first
		if err := t.decide(decision, statusText(first), first); err != nil {
			return first, err
		}
		return first, t.requireEffects(before, 0, first)
	case !isProtected:
		return first, t.decide(decision, "executed", first)
	}
	second := t.send(r)
	added, isKnown, err := t.effectsSince(before)
	if err != nil {
		return first, err
	}
	both := []*exchange{first, second}
	isReplay := second.answer != nil && haveSameAnswer(first, second)
	switch {
	case isKnown && added > 1, !isReplay && second.answer != nil && second.answer.isSuccess() && t.known.answersDiffer:
		return first, fail(both, "the service ignores the key, and executed the request again")
	case !isReplay:
		return first, fail(both, "the service executed the request, and answered the retry with %s", second.describe())
	}
	return first, t.decide(decision, "accepted", both...)
}

func checkKeyMissing(t *trial) error {
	r, _, err := t.newRequestWithHeaderKey()
	if err != nil {
		return err
	}
	_, err = t.judgeKey("key-missing", r.withKeys(), false)
	return err
}

// newRequestWithHeaderKey returns a request with a new key, or an error if the key is not only in its header.
func (t *trial) newRequestWithHeaderKey() (*request, string, error) {
	r, key, err := t.newRequest(t.service.Request)
	if err == nil && r.hasKeyElsewhere(key) {
		err = notMade("the key is not only in the header %s, so the probe cannot change it there", r.keyHeader)
	}
	return r, key, err
}

// checkKeyEmpty sends an empty key. Two requests must not be one operation, because no client chose the key.
func checkKeyEmpty(t *trial) error {
	r, _, err := t.newRequestWithHeaderKey()
	if err != nil {
		return err
	}
	first, err := t.judgeKey("key-empty", r.withKeys(""), false)
	if err != nil || !first.answer.isSuccess() {
		return err
	}
	other, _, err := t.newRequest(t.service.Request)
	if err != nil {
		return err
	}
	return t.requireTwoOperations(first, other.withKeys(""), "an empty key is one key for all")
}

// requireTwoOperations sends r, and returns a failure if r gets the answer of first.
func (t *trial) requireTwoOperations(first *exchange, r *request, message string) error {
	before, err := t.countEffects()
	if err != nil {
		return err
	}
	second := t.send(r)
	both := []*exchange{first, second}
	switch {
	case second.answer == nil:
		return t.failOrEnd(both, "the request got %s", second.describe())
	case isRefusedByClient(second):
		return nil
	}
	added, isKnown, err := t.effectsSince(before)
	switch {
	case err != nil:
		return err
	case isKnown && added == 0, !isKnown && t.known.answersDiffer && haveSameAnswer(first, second):
		return fail(both, "%s: the second request got %s, and was not executed", message, second.describe())
	case !isKnown && !t.known.answersDiffer:
		t.addMissing("answers of different operations are equal, and Service.Effects is nil")
	}
	return nil
}

// checkKeyTooLong sends two long keys that differ in the last character, because a column or an index may be shorter.
func checkKeyTooLong(t *trial) error {
	long := strings.Repeat(newKey(), 138)
	r, err := t.service.newRequest(t.service.Request, long+"a")
	if err != nil {
		return err
	}
	first, err := t.judgeKey("key-too-long", r, true)
	if err != nil || !first.answer.isSuccess() {
		return err
	}
	other, err := t.service.newRequest(t.service.Request, long+"b")
	if err != nil {
		return err
	}
	return t.requireTwoOperations(first, other, "keys are cut off")
}

func checkKeyTwice(t *trial) error {
	r, key, err := t.newRequestWithHeaderKey()
	if err != nil {
		return err
	}
	_, err = t.judgeKey("key-twice", r.withKeys(key, newKey()), true)
	return err
}

func checkKeyNotASCII(t *trial) error {
	r, err := t.service.newRequest(t.service.Request, newKey()+"-\u00e9\u20ac")
	if err != nil {
		return err
	}
	_, err = t.judgeKey("key-not-ascii", r, true)
	return err
}

// checkKeyCase sends two keys that differ in case, because some databases compare texts without case. The keys have the length
// of a UUID, but are none, because a UUID is the same in lower and upper case (RFC 9562, section 4).
func checkKeyCase(t *trial) error {
	suffix := "ey-" + strings.ReplaceAll(newKey(), "-", "")
	lower, err := t.service.newRequest(t.service.Request, "k"+suffix)
	if err != nil {
		return err
	}
	upper, err := t.service.newRequest(t.service.Request, "K"+suffix)
	if err != nil {
		return err
	}
	first := t.send(lower)
	switch {
	case first.answer == nil:
		return t.failOrEnd([]*exchange{first}, "the request got %s", first.describe())
	case isRefusedByClient(first):
		return notMade("the service refuses the key k%s with %s", suffix, first.describe())
	}
	return t.requireTwoOperations(first, upper, "keys are compared without case")
}

// checkKeyQuoted sends a key in the bare form and then as a structured string (RFC 9651). The draft demands the string.
func checkKeyQuoted(t *trial) error {
	r, key, err := t.newRequestWithHeaderKey()
	if err != nil {
		return err
	}
	before, err := t.countEffects()
	if err != nil {
		return err
	}
	bare := t.send(r.withKeys(key))
	if bare.answer != nil && !bare.answer.isSuccess() && isRefusedByClient(bare) {
		_, err := t.judgeKey("key-quoted", r.withKeys(`"`+key+`"`), true)
		t.note("the bare form is refused with %s", bare.describe())
		return err
	}
	quoted := t.send(r.withKeys(`"` + key + `"`))
	both := []*exchange{bare, quoted}
	switch {
	case bare.answer == nil || quoted.answer == nil || quoted.answer.status >= http.StatusInternalServerError:
		return t.failOrEnd(both, "the two forms got %s and %s", bare.describe(), quoted.describe())
	case isRefusedByClient(quoted):
		if err := t.requireEffects(before, 1, both...); err != nil {
			return err
		}
		return t.decide("key-quoted", statusText(quoted), both...)
	}
	added, isKnown, err := t.effectsSince(before)
	if err != nil {
		return err
	}
	isSameKey := haveSameAnswer(bare, quoted)
	switch {
	case isKnown:
		isSameKey = added == 1
	case !t.known.answersDiffer:
		t.addMissing("answers of different operations are equal, and Service.Effects is nil")
		return nil
	}
	if isSameKey {
		return t.decide("key-quoted", "same", both...)
	}
	return t.decide("key-quoted", "another", both...)
}
