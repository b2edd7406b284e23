package probe

import (
	"net/http"
	"sync"
)

// stray is a request that has the key of another operation.
type stray struct {
	decisionName string // the name of the decision
	senderText   string // who sends the request, for messages
}

// judgeStray returns a failure if a stray request got the answer of first. The service may refuse a stray request, or
// execute the request as a separate operation.
func (t *trial) judgeStray(s stray, first, made *exchange, before int) error {
	both := []*exchange{first, made}
	if made.answer == nil {
		return t.failOrEnd(both, "%s got %s", s.senderText, made.describe())
	}
	if !made.answer.isSuccess() {
		if made.answer.status >= http.StatusInternalServerError {
			return fail(both, "%s got %s", s.senderText, made.describe())
		}
		t.known.seenRefusals[s.decisionName] = made
		if err := t.requireEffects(before, 0, both...); err != nil {
			return err
		}
		return t.decide(s.decisionName, statusText(made), made)
	}
	if marker, _ := t.compareHeaders(first.answer.header, made.answer.header); marker != "none" && haveSameAnswer(first, made) {
		return fail(both, "%s got the first answer, with the marker %s", s.senderText, marker)
	}
	added, isKnown, err := t.effectsSince(before)
	if err != nil {
		return err
	}
	switch {
	case isKnown && added == 0:
		return fail(both, "%s got %s, and the service did not act", s.senderText, made.describe())
	case !isKnown && haveSameAnswer(first, made) && t.known.answersDiffer:
		return fail(both, "%s got the first answer", s.senderText)
	case isKnown && haveSameAnswer(first, made) && t.known.answersDiffer:
		return fail(both, "%s got the first answer, and the service acted %s", s.senderText, times(added))
	case !isKnown && haveSameAnswer(first, made):
		t.addMissing("answers of different operations are equal, and Service.Effects is nil")
	}
	return t.decide(s.decisionName, "executed", made)
}

// checkStray executes a request, and then sends a stray request with the same key. With a key of its own, the stray request
// must be valid, because a refusal for another reason proves nothing.
func (t *trial) checkStray(decision, who string, buildStray func(key string) (*request, error)) error {
	valid, err := buildStray(newKey())
	if err != nil {
		return err
	}
	if own := t.send(valid); own.answer == nil || !own.answer.isSuccess() {
		return notMade("%s: with a key of its own, the service answers it with %s", who, own.describe())
	}
	r, key, err := t.newRequest(t.service.Request)
	if err != nil {
		return err
	}
	first, err := t.execute(r)
	if err != nil {
		return err
	}
	strayRequest, err := buildStray(key)
	if err != nil {
		return err
	}
	if decision != "other-user" && strayRequest.isSameOperation(r) {
		return notMade("the request is the same as Service.Request")
	}
	before, err := t.countEffects()
	if err != nil {
		return err
	}
	isExecuted := false
	for i := range t.service.URLs {
		made := t.sendTo(i, strayRequest)
		if isExecuted && made.answer != nil && made.answer.isSuccess() {
			continue // a replay of the stray request itself
		}
		isExecuted = made.answer != nil && made.answer.isSuccess()
		if err := t.judgeStray(stray{decisionName: decision, senderText: who}, first, made, before); err != nil {
			return err
		}
	}
	return t.requireReplay(first, t.send(r))
}

func checkOtherContent(t *trial) error {
	return t.checkStray("other-content", "another content with the same key", func(key string) (*request, error) {
		return t.service.newRequest(t.service.Other, key)
	})
}

func checkOtherRoute(t *trial) error {
	return t.checkStray("other-route", "another route with the same key", func(key string) (*request, error) {
		return t.service.newRequest(t.service.OtherRoute, key)
	})
}

func checkOtherUser(t *trial) error {
	return t.checkStray("other-user", "another user with the same key", func(key string) (*request, error) {
		return t.service.newRequestAs(t.service.Request, key, Stranger)
	})
}

// checkOtherContentAtOnce sends two contents with the same key at the same time.
func checkOtherContentAtOnce(t *trial) error {
	for round, build := range []func(string) *http.Request{t.service.Request, t.service.Request, t.service.Request, t.service.Slow} {
		r, key, err := t.newRequest(build)
		if err != nil {
			return err
		}
		other, err := t.service.newRequest(t.service.Other, key)
		if err != nil {
			return err
		}
		before, err := t.countEffects()
		if err != nil {
			return err
		}
		var made [2]*exchange
		var group sync.WaitGroup
		group.Go(func() { made[0] = t.sendOnce(0, r) })
		group.Go(func() { made[1] = t.sendOnce(round%2, other) })
		group.Wait()
		if err := t.judgeRivals(made, before); err != nil {
			return err
		}
	}
	return nil
}

// judgeRivals judges the answers to two concurrent contents with the same key.
func (t *trial) judgeRivals(made [2]*exchange, before int) error {
	executed := 0
	for _, each := range made {
		switch {
		case each.answer == nil || each.answer.status >= http.StatusInternalServerError:
			return t.failOrEnd(made[:], "one of two contents with one key got %s", each.describe())
		case each.answer.isSuccess():
			executed++
		}
	}
	if executed == 2 && haveSameAnswer(made[0], made[1]) && t.known.answersDiffer {
		return fail(made[:], "two contents with one key got the same answer")
	}
	if executed == 0 {
		return nil // both were refused, and a retry is free to be executed
	}
	added, isKnown, err := t.effectsSince(before)
	if err == nil && isKnown && added != executed {
		return fail(made[:], "two contents with one key got a success %s, and the service acted %s", times(executed), times(added))
	}
	return err
}
