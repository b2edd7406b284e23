package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// killedRequest is a request during which the process was killed.
type killedRequest struct {
	*exchange
	totalBefore   int // all effects before the request
	effectsBefore int // the effects until the next request
}

// heldPatience is how long the probe waits for the end of the connection after the death of the process. If the socket outlives
// the process, for example because systemd holds the socket, a connection that the process has not accepted stays open, and the
// next process executes the request.
const heldPatience = time.Second

// checkDeaths kills the process during requests with different keys, and then retries each request.
func checkDeaths(t *trial) error {
	if t.service.Effects == nil {
		t.addMissing("the effects were not counted, because Service.Effects is nil")
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
	if err := t.countEffectsOf(killed); err != nil {
		return err
	}
	var judged deathEffects
	unknown := 0
	for i, death := range killed {
		t.reportStep(len(killed)+i, 2*len(killed))
		retry, err := t.retryAfterDeath(death, &judged)
		if err != nil {
			return err
		}
		t.longestBlock = max(t.longestBlock, retry.blockedFor)
		if retry.isUnknown {
			unknown++
		}
	}
	if judged.missing != nil {
		return judged.missing
	}
	t.note("the process was killed %d times, in %d cases after the answer", len(killed), countAnswers(killed))
	if unknown > 0 {
		t.note("%d outcomes are unknown", unknown)
		return t.decide("after-death", "unknown")
	}
	return t.decide("after-death", "answered")
}

// countEffectsOf sets the effects of each request until the next one.
func (t *trial) countEffectsOf(killed []killedRequest) error {
	total, err := t.countEffects()
	if err != nil {
		return err
	}
	for i := len(killed) - 1; i >= 0; i-- {
		killed[i].effectsBefore = total - killed[i].totalBefore
		total = killed[i].totalBefore
	}
	return nil
}

// deathEffects judges how often the service acted for each of the requests, in the order in which they were sent. A database can
// commit for a moment after the process has died, so an effect can come so late that it was counted for the next request.
type deathEffects struct {
	mayBeLate bool  // the previous request had no effect
	missing   error // the previous request must have had an effect, unless the effect was late
}

// judge returns a failure of this request, or of the one before. acted is how often the service acted.
func (e *deathEffects) judge(acted int, retry retrial, seen []*exchange, death killedRequest) error {
	needed := 1
	if retry.isUnknown {
		needed = 0
	}
	if e.mayBeLate && acted > 1 || e.missing != nil && acted > needed {
		acted--
		e.missing = nil
	}
	switch {
	case e.missing != nil:
		return e.missing
	case acted > 1:
		return fail(seen, "the service acted %s: %s before the death of the process, and %s after",
			times(death.effectsBefore+retry.effectsAfter), times(death.effectsBefore), times(retry.effectsAfter))
	case acted < needed:
		e.missing = fail(seen, "the service has answered, and never acted")
	}
	e.mayBeLate = acted == 0
	return nil
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
	r, _, err := t.newRequest(t.service.Slow)
	if err != nil {
		return killedRequest{}, err
	}
	before, err := t.countEffects()
	if err != nil {
		return killedRequest{}, err
	}
	latency := t.known.slowLatency
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	answered := make(chan *exchange, 1)
	go func() { answered <- t.client.send(ctx, t.client.http1Transport, r, t.instance(0)) }()
	death := killedRequest{totalBefore: before}
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
	if err := t.service.Kill(t.ctx); err != nil {
		return killedRequest{}, notMade("Service.Kill: %v", err)
	}
	if death.exchange == nil {
		select {
		case death.exchange = <-answered:
		case <-time.After(heldPatience):
		}
	}
	action := "killed the process " + describeInstant(death.exchange)
	if err := t.restart(); err != nil {
		return killedRequest{}, err
	}
	if death.exchange == nil {
		death.exchange = <-answered // by the new process, whose effect is counted below
	}
	death.probeAction = action
	return death, t.sleep(t.known.requestLatency + 50*time.Millisecond) // the database may still commit
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
		count, err := t.countEffects()
		if err != nil || count > before {
			return nil, err
		}
		if err := t.sleep(200 * time.Microsecond); err != nil {
			return nil, err
		}
	}
}

// restart starts the process and waits until it accepts connections.
func (t *trial) restart() error {
	if err := t.service.Start(t.ctx); err != nil {
		return notMade("Service.Start: %v", err)
	}
	t.client.close()
	deadline := time.Now().Add(t.service.Timeout)
	for {
		ctx, cancel := context.WithTimeout(t.ctx, time.Second)
		connection, err := t.client.dial(ctx, t.instance(0))
		cancel()
		if err == nil {
			return connection.Close()
		}
		if time.Now().After(deadline) {
			return notMade("the service does not accept connections after Service.Start: %v", err)
		}
		if err := t.sleep(10 * time.Millisecond); err != nil {
			return err
		}
	}
}

// retryAfterDeath retries a request during which the process was killed, and judges the answers and the effects.
func (t *trial) retryAfterDeath(death killedRequest, judged *deathEffects) (retrial, error) {
	before := 0
	if t.service.Effects != nil {
		var err error
		if before, err = t.countEffects(); err != nil {
			return retrial{}, err
		}
	}
	retry, err := t.retryUntilAnswered(0, death.request)
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
	retry.effectsAfter = added
	return retry, judged.judge(death.effectsBefore+added, retry, seen, death)
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
