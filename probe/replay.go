package probe

import (
	"slices"
	"strings"
	"sync"
	"time"
)

// executeCounted executes a new request, and returns the effects before it.
func (t *trial) executeCounted() (r *request, first *exchange, before int, err error) {
	if r, before, err = t.newCountedRequest(t.service.Request); err != nil {
		return nil, nil, 0, err
	}
	first, err = t.execute(r)
	return r, first, before, err
}

// checkReplayAfter executes a request, calls prepare, and repeats the request twice, beginning at instance i.
func (t *trial) checkReplayAfter(i int, prepare func() error) error {
	r, first, before, err := t.executeCounted()
	if err != nil {
		return err
	}
	if err := prepare(); err != nil {
		return err
	}
	var last *exchange
	for repetition := range 2 {
		if repetition == 1 {
			r = r.withTracing()
		}
		last = t.sendTo(i+repetition, r)
		if err := t.requireReplay(first, last); err != nil {
			return err
		}
	}
	return t.requireEffects(before, 1, first, last)
}

// withTracing returns a copy of r with other fields for tracing, because each message has its own: they are no part of the
// operation.
func (r *request) withTracing() *request {
	copied := r.clone()
	id := strings.ReplaceAll(newKey(), "-", "")
	for name, value := range map[string]string{"Traceparent": "00-" + id + "-" + id[:16] + "-01", "X-Request-Id": id} {
		if name != r.keyHeader {
			copied.header.Set(name, value)
		}
	}
	return copied
}

func checkReplay(t *trial) error {
	return t.checkReplayAfter(0, func() error { return nil })
}

func checkReplayLater(t *trial) error {
	return t.checkReplayAfter(0, func() error { return t.sleep(time.Second) })
}

func checkReplayElsewhere(t *trial) error {
	return t.checkReplayAfter(1, func() error { return nil })
}

func checkReplayAfterRestart(t *trial) error {
	r, first, before, err := t.executeCounted()
	if err != nil {
		return err
	}
	if err := t.kill(); err != nil {
		return err
	}
	if err := t.restart(r); err != nil {
		return err
	}
	retry, err := t.retryUntilAnswered(0, r) // a proxy in front of the service can be ready before the service
	if err != nil {
		return withExchange(first, err)
	}
	for _, replay := range []*exchange{retry.exchange, t.sendTo(1, r)} {
		if err := t.requireReplay(first, replay); err != nil {
			return err
		}
	}
	return t.requireEffects(before, 1, first, retry.exchange)
}

// checkAtOnce sends count equal requests at the same time, to all instances.
func checkAtOnce(count int) func(*trial) error {
	return func(t *trial) error {
		r, before, err := t.newCountedRequest(t.service.Request)
		if err != nil {
			return err
		}
		exchanges := t.sendAtOnce(r, count)
		last, err := t.retryUntilAnswered(0, r)
		if err != nil {
			return err
		}
		if last.isUnknown {
			return fail([]*exchange{last.exchange}, "nothing has failed, and the service does not know the outcome")
		}
		for _, made := range exchanges {
			if err := t.judgeDuplicate(made, last.exchange); err != nil {
				return err
			}
		}
		return t.requireEffects(before, 1, exchanges[0], last.exchange)
	}
}

// sendAtOnce sends r count times at once, to all instances in turn.
func (t *trial) sendAtOnce(r *request, count int) []*exchange {
	exchanges := make([]*exchange, count)
	start := make(chan struct{})
	var group sync.WaitGroup
	for i := range exchanges {
		group.Go(func() {
			<-start
			exchanges[i] = t.sendOnce(i, r)
		})
	}
	close(start)
	group.Wait()
	return exchanges
}

// judgeDuplicate returns a failure unless made has the answer of last, or asks to come again.
func (t *trial) judgeDuplicate(made, last *exchange) error {
	switch {
	case made.answer == nil:
		return t.failOrEnd([]*exchange{made}, "a duplicate got %s", made.describe())
	case made.answer.isSuccess():
		return t.requireSameAnswer(made, last)
	case !made.answer.asksToComeAgain():
		return fail([]*exchange{made}, "a duplicate of a running request got %s, which does not ask to come again", made.describe())
	}
	if t.known.seenRefusals["while-running"] == nil {
		t.known.seenRefusals["while-running"] = made
	}
	return t.decide("while-running", statusText(made), made)
}

// checkWhileRunning repeats a request again and again while it runs. On a busy machine, a duplicate can overtake the request
// on its way, and then the request is the duplicate of a running one. The check begins again in this case, with a longer
// pause before the first duplicate.
func checkWhileRunning(t *trial) error {
	pause := max(5*time.Millisecond, t.known.requestLatency/10)
	for range 2 {
		if isOvertaken, err := t.repeatWhileRunning(pause); !isOvertaken {
			return err
		}
		pause *= 4
	}
	_, err := t.repeatWhileRunning(pause)
	return err
}

// repeatWhileRunning makes the check with this pause before the first duplicate.
func (t *trial) repeatWhileRunning(pause time.Duration) (isOvertaken bool, err error) {
	r, before, err := t.newCountedRequest(t.service.Slow)
	if err != nil {
		return false, err
	}
	answered := make(chan *exchange, 1)
	go func() { answered <- t.send(r) }()
	first, duplicates := t.sendDuplicates(r, pause, answered)
	if first.answer == nil || !first.answer.isSuccess() {
		isOvertaken = first.answer != nil && first.answer.asksToComeAgain() && slices.ContainsFunc(duplicates, hasSuccess)
		return isOvertaken, t.failOrEnd([]*exchange{first}, "a valid request with a new key was answered with %s", first.describe())
	}
	return false, t.judgeDuplicates(first, duplicates, before)
}

func hasSuccess(made *exchange) bool { return made.answer != nil && made.answer.isSuccess() }

// judgeDuplicates returns a failure unless each duplicate of first has its answer, or asks to come again.
func (t *trial) judgeDuplicates(first *exchange, duplicates []*exchange, before int) error {
	for _, duplicate := range duplicates {
		if err := t.judgeDuplicate(duplicate, first); err != nil {
			return err
		}
	}
	if len(duplicates) > 0 && len(t.result.Decisions) == 0 {
		if err := t.decide("while-running", "waits", duplicates[0]); err != nil {
			return err
		}
	}
	if len(duplicates) == 0 {
		t.addMissing("no duplicate was sent while the request ran, because it is fast: set Service.Slow")
	} else {
		t.note("duplicates sent in the %s for which the request ran: %d", round(first.answer.duration), len(duplicates))
	}
	return t.requireEffects(before, 1, first)
}

// sendDuplicates waits for pause, and then repeats r until answered has the answer to the first request. The results are
// the first answer and the answers to the duplicates.
func (t *trial) sendDuplicates(r *request, pause time.Duration, answered <-chan *exchange) (
	first *exchange, duplicates []*exchange,
) {
	const most = 200
	made := make(chan *exchange, most)
	sent := 0
	for sent < most && first == nil {
		select {
		case first = <-answered:
		case <-time.After(pause):
			sent++
			instance := sent
			go func() { made <- t.sendOnce(instance, r) }()
			pause = min(pause*11/10, 250*time.Millisecond)
		}
	}
	if first == nil {
		first = <-answered
	}
	for range sent {
		duplicates = append(duplicates, <-made)
	}
	return first, duplicates
}
