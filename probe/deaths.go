package probe

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// killedRequest is a request during which the process was killed.
type killedRequest struct {
	*exchange
	effectsBefore int // the effects until the process was started again
	diedAt        time.Time
}

// heldPatience is how long the probe waits for the end of the connection after the death of the process. If the socket outlives
// the process, for example because systemd holds the socket, a connection that the process has not accepted stays open, and the
// next process executes the request.
const heldPatience = time.Second

// checkDeaths kills the process during requests with different keys, and then retries each request.
func checkDeaths(t *trial) error {
	totalBefore, err := t.countEffects()
	if err != nil {
		return err
	}
	var killed []killedRequest
	for i := range t.service.Deaths {
		t.reportStep(i, 2*t.service.Deaths)
		death, err := t.killDuring(i)
		if err != nil {
			return err
		}
		killed = append(killed, death)
	}
	unknown := 0
	var wrongEffects error // of the first operation
	for i, death := range killed {
		t.reportStep(len(killed)+i, 2*len(killed))
		retry, err := t.retryAfterDeath(death)
		if err != nil {
			return err
		}
		wrongEffects = cmp.Or(wrongEffects, retry.wrongEffects)
		if retry.tryCount > 1 {
			t.longestBlock = max(t.longestBlock, retry.answeredAt.Sub(death.diedAt))
		}
		if retry.isUnknown {
			unknown++
		}
	}
	// A service that resumes its operations after a restart acts at any time. Then only the total is certain.
	total, isKnown, err := t.effectsSince(totalBefore)
	if err != nil {
		return err
	}
	if wrongEffects != nil && (total > len(killed) || total < len(killed)-unknown) {
		return wrongEffects
	}
	if isKnown && total > len(killed) {
		return fail(nil, "the service acted %s for %d operations", times(total), len(killed))
	}
	t.note("the process was killed %d times, in %d cases after the answer", len(killed), countAnswers(killed))
	if countAnswers(killed) == len(killed) {
		t.addMissing("no process was killed during a request, because the request is fast: set Service.Slow")
	}
	if unknown > 0 {
		t.note("%d outcomes are unknown", unknown)
		return t.decide("after-death", "unknown")
	}
	return t.decide("after-death", "answered")
}

func countAnswers(killed []killedRequest) int {
	count := 0
	for _, death := range killed {
		if death.answer != nil {
			count++
		}
	}
	return count
}

// killDuring sends a new request, kills the process, and starts the process again. The instant of the death depends on i.
func (t *trial) killDuring(i int) (killedRequest, error) {
	r, before, err := t.newCountedRequest(t.service.Slow)
	if err != nil {
		return killedRequest{}, err
	}
	latency := t.known.slowLatency
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	answered := make(chan *exchange, 1)
	group.Go(func() { answered <- t.client.send(ctx, t.client.http1Transport, r, t.instance(0)) })
	var death killedRequest
	switch instant, delay := i%4, time.Duration(rand.Float64()*1.2*float64(latency)); {
	case instant == 0 && t.service.Effects != nil:
		death.exchange, err = t.awaitEffect(before, answered)
	case instant == 1:
		death.exchange = <-answered
	default:
		if err = t.sleep(delay); err == nil {
			select {
			case death.exchange = <-answered:
			default:
			}
		}
	}
	if err != nil {
		return killedRequest{}, err
	}
	if err := t.kill(); err != nil {
		return killedRequest{}, err
	}
	death.diedAt = time.Now()
	if death.exchange == nil {
		select {
		case death.exchange = <-answered:
		case <-time.After(heldPatience):
		}
	}
	action := "killed the process " + describeInstant(death.exchange)
	if err := t.restart(r); err != nil {
		return killedRequest{}, err
	}
	if death.exchange == nil {
		death.exchange = <-answered // by the new process, whose effect is counted below
	}
	death.probeAction = action
	after, err := t.countEffects()
	death.effectsBefore = after - before
	return death, err
}

// describeInstant says when the process was killed. made is nil if the request has not ended with the process.
func describeInstant(made *exchange) string {
	switch {
	case made == nil:
		return "before it accepted the connection"
	case made.answer != nil:
		return "after the answer"
	}
	return "during the request"
}

// awaitEffect waits until the service has acted, or has answered, because a process that dies right after the effect
// often leaves no record of the effect.
func (t *trial) awaitEffect(before int, answered <-chan *exchange) (*exchange, error) {
	for {
		select {
		case made := <-answered:
			return made, nil
		default:
		}
		count, err := t.readEffects()
		if err != nil || count > before {
			return nil, err
		}
		if err := t.sleep(200 * time.Microsecond); err != nil {
			return nil, err
		}
	}
}

// kill kills the process, and waits until it has gone, because the port may be taken until then. Behind a proxy, the end of the
// process cannot be seen.
func (t *trial) kill() error {
	if err := t.service.Kill(t.ctx); err != nil {
		return interrupted("Service.Kill: %v", err)
	}
	deadline := time.Now().Add(time.Second)
	for !t.known.isProxied {
		if t.tryConnection() != nil {
			break
		}
		t.known.isProxied = time.Now().After(deadline)
		if err := t.sleep(10 * time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// restart starts the process and waits until it accepts connections. A proxy always accepts connections, so r is sent again
// until the service answers.
func (t *trial) restart(r *request) error {
	if err := t.service.Start(t.ctx); err != nil {
		return interrupted("Service.Start: %v", err)
	}
	t.client.close()
	deadline := time.Now().Add(t.service.Timeout)
	for {
		err := t.tryConnection()
		if err == nil && (!t.known.isProxied || t.answersItself(r)) {
			return nil
		}
		if time.Now().After(deadline) {
			return interrupted("the service does not accept connections after Service.Start: %v", err)
		}
		if err := t.sleep(10 * time.Millisecond); err != nil {
			return err
		}
	}
}

// tryConnection returns nil if the first instance, or a proxy in front of the instance, accepts connections.
func (t *trial) tryConnection() error {
	ctx, cancel := context.WithTimeout(t.ctx, time.Second)
	defer cancel()
	connection, err := t.client.dial(ctx, t.instance(0))
	if err != nil {
		return err
	}
	return connection.Close()
}

// answersItself reports whether the answer to r comes from the service, and not from a proxy whose service is down.
func (t *trial) answersItself(r *request) bool {
	made := t.sendOnce(0, r)
	return made.answer != nil && made.answer.status < http.StatusInternalServerError
}

// deathRetrial is a retry of a request during which the process was killed.
type deathRetrial struct {
	retrial
	answeredAt   time.Time
	wrongEffects error // a failure, if the service did not act once
}

// retryAfterDeath retries a request during which the process was killed, and judges the answers and the effects.
func (t *trial) retryAfterDeath(death killedRequest) (deathRetrial, error) {
	before, err := t.countEffects()
	if err != nil {
		return deathRetrial{}, err
	}
	last, err := t.retryUntilAnswered(0, death.request)
	retry := deathRetrial{retrial: last, answeredAt: time.Now()}
	if err != nil {
		return retry, withExchange(death.exchange, err)
	}
	seen := []*exchange{death.exchange, retry.exchange}
	switch isAnswered := death.answer != nil && death.answer.isSuccess(); {
	case isAnswered && retry.isUnknown:
		return retry, fail(seen, "the client has got an answer, and after the death of the process the service does not know the outcome")
	case isAnswered:
		if err := t.requireReplay(death.exchange, retry.exchange); err != nil {
			return retry, err
		}
	}
	if !retry.isUnknown {
		again := t.send(death.request)
		if err := t.requireSameAnswer(retry.exchange, again); err != nil {
			return retry, withExchange(death.exchange, err)
		}
	}
	added, isKnown, err := t.effectsSince(before)
	if err != nil || !isKnown {
		return retry, err
	}
	switch acted := death.effectsBefore + added; {
	case acted > 1:
		retry.wrongEffects = fail(seen, "the service acted %s: %s before the death of the process, and %s after",
			times(acted), times(death.effectsBefore), times(added))
	case acted == 0 && !retry.isUnknown:
		retry.wrongEffects = fail(seen, "the service has answered, and never acted")
	}
	return retry, nil
}

// statusText returns the status of an answer as a decision names it.
func statusText(made *exchange) string {
	if made.answer == nil {
		return "no answer"
	}
	return fmt.Sprint(made.answer.status)
}

// isRefusedByClient reports whether the service refused the request as the client's fault.
func isRefusedByClient(made *exchange) bool {
	return made.answer != nil && made.answer.status >= http.StatusBadRequest && made.answer.status < http.StatusInternalServerError
}
