package dynamodbstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// ErrClock says that the clock of this machine is too far from that of the service, see [Options].Skew. Nothing is claimed
// until it is set right, and no handler runs, also with FailOpen: the error of Begin wraps [errors.ErrUnsupported], too. What
// runs is still completed.
var ErrClock = errors.New("dynamodbstore: the clock of this machine is wrong")

// clock watches how far the clock of this machine is from that of the service, by the Date of its answers.
type clock struct {
	tolerance time.Duration

	mu    sync.Mutex
	asked time.Time     // when the last answer came; zero: never
	dated bool          // an answer had a Date
	ahead time.Duration // by how much the clock certainly is ahead; negative: behind
}

// How long what an answer has told is believed, and by how much the clock may have been set since.
const (
	believed = 5 * time.Minute
	step     = 500 * time.Millisecond
)

// newClock allows for Dates that a server does not make anew each time.
func newClock(skew time.Duration) *clock {
	return &clock{tolerance: max(time.Second, skew/2-2*time.Second)}
}

// isChecked reports whether the clock was compared lately, and has not been set since.
func (c *clock) isChecked(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed, shown := now.Sub(c.asked), now.Round(0).Sub(c.asked.Round(0)) // by the monotonic clock, and by the other
	return !c.asked.IsZero() && passed < believed && (passed-shown).Abs() < step
}

// answered notes an answer without a Date.
func (c *clock) answered(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = now
}

// compare notes the Date of an answer. It is in whole seconds, and from somewhere between the two times.
func (c *clock) compare(sent, received, date time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked, c.dated = received, true
	first, last := date, date.Add(time.Second)
	c.ahead = 0
	switch {
	case sent.After(last):
		c.ahead = sent.Sub(last)
	case received.Before(first):
		c.ahead = received.Sub(first)
	}
}

// fault returns what is wrong with the clock.
func (c *clock) fault() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ahead.Abs() <= c.tolerance {
		return nil
	}
	return fmt.Errorf("%w: it is %s ahead of the service, and %s are tolerated", ErrClock, c.ahead, c.tolerance)
}

// isDated reports whether the service has told its time.
func (c *clock) isDated() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dated
}

// watch has each answer of the SDK compared, also one that is an error.
func (c *clock) watch(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("idempotency clock", func(
		ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
	) (middleware.DeserializeOutput, middleware.Metadata, error) {
		sent := time.Now()
		out, metadata, err := next.HandleDeserialize(ctx, in)
		if resp, ok := out.RawResponse.(*smithyhttp.Response); ok && resp != nil && resp.Response != nil {
			if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
				c.compare(sent, time.Now(), date)
			}
		}
		return out, metadata, err
	}), middleware.After)
}
