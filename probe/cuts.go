package probe

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

// checkCutRequest breaks the connection before the request is complete.
func checkCutRequest(t *trial) error {
	points := []cutPoint{
		{description: "closed the connection within the header", findEnd: func(b []byte) int { return headerEnd(b) / 2 }},
		{description: "closed the connection after the header", findEnd: headerEnd, needsBody: true},
		{description: "closed the connection before the last byte", findEnd: func(b []byte) int { return len(b) - 1 }},
	}
	incomplete := "ignored"
	for _, point := range points {
		r, before, err := t.newCountedRequest(t.service.Request)
		if err != nil {
			return err
		}
		if len(r.body) == 0 && point.needsBody {
			continue
		}
		cut := t.client.sendAndCut(t.ctx, r, t.instance(0), point)
		if cut.err != nil {
			return t.failOrEnd([]*exchange{cut}, "the request cannot be sent: %v", cut.err)
		}
		if added, isKnown, err := t.effectsSince(before); err != nil {
			return err
		} else if isKnown && added > 0 {
			incomplete = "executed"
		}
		if err := t.requireAnswerAfter(cut, before); err != nil {
			return err
		}
	}
	if t.service.Effects == nil {
		return nil
	}
	return t.decide("incomplete-request", incomplete)
}

// headerEnd returns the length of the header of an encoded request.
func headerEnd(encoded []byte) int { return bytes.Index(encoded, []byte("\r\n\r\n")) + 4 }

// requestEnd returns the length of an encoded request.
func requestEnd(encoded []byte) int { return len(encoded) }

// requireAnswerAfter returns a failure unless a retry of an interrupted request gets the answer, and then a replay, and the
// service acts once.
func (t *trial) requireAnswerAfter(interrupted *exchange, before int) error {
	retry, err := t.retryUntilAnswered(1, interrupted.request)
	if err != nil {
		return withExchange(interrupted, err)
	}
	if retry.isUnknown {
		return fail([]*exchange{interrupted, retry.exchange}, "the service is alive, and does not know the outcome")
	}
	if retry.tryCount > 1 {
		t.longestBlock = max(t.longestBlock, retry.blockedFor)
	}
	again := t.sendTo(2, interrupted.request)
	if err := t.requireSameAnswer(retry.exchange, again); err != nil {
		return withExchange(interrupted, err)
	}
	return withExchange(interrupted, t.requireEffects(before, 1, retry.exchange, again))
}

// withExchange puts first before the exchanges of a failure.
func withExchange(first *exchange, err error) error {
	if found, ok := err.(*failure); ok {
		return &failure{messageText: found.messageText, exchanges: append([]*exchange{first}, found.exchanges...)}
	}
	return err
}

// The points after a complete request.
var (
	cutAfterRequest = cutPoint{description: "closed the connection after the request", findEnd: requestEnd}
	cutInAnswer     = cutPoint{description: "closed the connection after the first byte of the answer", findEnd: requestEnd,
		readsFirstByte: true}
)

func checkCutAfterRequest(t *trial) error { return t.checkCutComplete(cutAfterRequest) }

func checkCutAnswer(t *trial) error { return t.checkCutComplete(cutInAnswer) }

// checkCutComplete breaks the connection at point, after a complete request. The pauses let the service begin meanwhile.
func (t *trial) checkCutComplete(point cutPoint) error {
	for _, part := range []float64{0, 0.3, 0.6} {
		point.pause = time.Duration(part * float64(t.known.requestLatency))
		r, before, err := t.newCountedRequest(t.service.Request)
		if err != nil {
			return err
		}
		cut := t.client.sendAndCut(t.ctx, r, t.instance(0), point)
		if cut.err != nil {
			return t.failOrEnd([]*exchange{cut}, "the request got %s", cut.describe())
		}
		if err := t.requireAnswerAfter(cut, before); err != nil {
			return err
		}
	}
	return nil
}

// checkClientTimeout gives up after several parts of the usual duration of a request.
func checkClientTimeout(t *trial) error {
	abandoned := 0
	parts := []float64{0.1, 0.3, 0.5, 0.7, 0.9, 1}
	for _, part := range parts {
		r, before, err := t.newCountedRequest(t.service.Slow)
		if err != nil {
			return err
		}
		timeout := time.Duration(part * float64(t.known.slowLatency))
		ctx, cancel := context.WithTimeout(t.ctx, timeout)
		first := t.client.send(ctx, t.client.http1Transport, r, t.instance(0))
		cancel()
		if first.answer == nil {
			abandoned++
		}
		first.probeAction = fmt.Sprintf("gave up after %s", round(timeout))
		if err := t.requireAnswerAfter(first, before); err != nil {
			return err
		}
	}
	t.note("the client gave up before the answer in %d of %d tries", abandoned, len(parts))
	if abandoned == 0 {
		t.addMissing("the client never gave up, because the request is fast: set Service.Slow")
	}
	return nil
}
