package dynamodbstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Client has the four calls that a store makes. A *dynamodb.Client implements Client. A wrapper must pass on the functions of type
// func(*dynamodb.Options), because the functions turn off the retries of the SDK, and show the Date of the replies to the
// store.
type Client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	DeleteItem(context.Context, *dynamodb.DeleteItemInput, ...func(*dynamodb.Options)) (*dynamodb.DeleteItemOutput, error)
	Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error)
}

// describer has the calls that read the settings of the table.
type describer interface {
	DescribeTable(
		context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options),
	) (*dynamodb.DescribeTableOutput, error)
	DescribeTimeToLive(
		context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options),
	) (*dynamodb.DescribeTimeToLiveOutput, error)
}

// maxTries bounds how often a step is begun while the service or the connection fails.
const maxTries = 4

// retryStep repeats a step: until ctx ends while the service lacks capacity, and up to maxTries after failures. If ctx ends
// after the service has lacked capacity, the error wraps [idempotency.ErrStoreBusy].
func retryStep(ctx context.Context, step func() error) error {
	var throttledErr error
	for n, failures := 0, 0; ; n++ {
		err := step()
		switch {
		case isThrottled(err):
			throttledErr = err
		case err == nil || hasNoEffect(err) || isRefusal(err) || failures == maxTries-1:
			return err
		default:
			failures++
		}
		if sqlstore.Pause(ctx, sqlstore.Growing(n, 5*time.Millisecond)) {
			continue
		}
		if throttledErr != nil {
			return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, errors.Join(ctx.Err(), err))
		}
		return err
	}
}

// isRefusal reports whether a step was refused by the store, so that a repetition is useless.
func isRefusal(err error) bool {
	return errors.Is(err, idempotency.ErrRecordInvalid) || errors.Is(err, idempotency.ErrStoreFull) || errors.Is(err, ErrClock)
}

// ErrClock reports that the clock of this machine differs too much from the clock of the service, see [Options].Skew. Until
// the clock is correct, the store claims nothing, and no handler runs, even with FailOpen, because the error of Begin also
// wraps [errors.ErrUnsupported]. Running operations are still completed.
var ErrClock = errors.New("dynamodbstore: the clock of this machine is wrong")

// clock compares the clock of this machine with the clock of the service, by the Date of the replies.
type clock struct {
	tolerance time.Duration

	mu        sync.Mutex
	lastReply time.Time     // time of the last reply; zero: no reply yet
	hasDate   bool          // a reply had a Date
	aheadBy   time.Duration // least lead over the clock of the service; negative: behind the clock of the service
}

// checkLifetime is how long a comparison stays valid. If the wall clock has moved by maxClockStep against the monotonic
// clock, the clock was set, and the comparison is invalid.
const (
	checkLifetime = 5 * time.Minute
	maxClockStep  = 500 * time.Millisecond
)

// newClock tolerates at least a second, because a server may send a Date that was formatted for an earlier reply.
func newClock(skew time.Duration) *clock {
	return &clock{tolerance: max(time.Second, skew/2-2*time.Second)}
}

// isRecentlyChecked reports whether the clock was compared within checkLifetime, and was not set since the comparison.
func (c *clock) isRecentlyChecked(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	monotonic, wall := now.Sub(c.lastReply), now.Round(0).Sub(c.lastReply.Round(0)) // Round(0) removes the monotonic reading
	return !c.lastReply.IsZero() && monotonic < checkLifetime && (monotonic-wall).Abs() < maxClockStep
}

// noteReply notes the time of a reply, also of a reply without a Date.
func (c *clock) noteReply(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastReply = now
}

// noteDate notes the Date of a reply. The service has made the Date between sent and received, and has cut the Date to whole
// seconds.
func (c *clock) noteDate(sent, received, date time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastReply, c.hasDate = received, true
	first, last := date, date.Add(time.Second)
	c.aheadBy = 0
	switch {
	case sent.After(last):
		c.aheadBy = sent.Sub(last)
	case received.Before(first):
		c.aheadBy = received.Sub(first)
	}
}

// checkDifference returns an error that wraps ErrClock if the difference exceeds the tolerance.
func (c *clock) checkDifference() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aheadBy.Abs() <= c.tolerance {
		return nil
	}
	return fmt.Errorf("%w: %s ahead of the clock of the service, with a tolerance of %s", ErrClock, c.aheadBy, c.tolerance)
}

// hasSeenDate reports whether a reply had a Date.
func (c *clock) hasSeenDate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hasDate
}

// watchReplies makes the SDK pass the Date of each reply to noteDate. Replies with errors count as well.
func (c *clock) watchReplies(stack *middleware.Stack) error {
	return stack.Deserialize.Add(middleware.DeserializeMiddlewareFunc("idempotency clock", func(
		ctx context.Context, in middleware.DeserializeInput, next middleware.DeserializeHandler,
	) (middleware.DeserializeOutput, middleware.Metadata, error) {
		sent := time.Now()
		out, metadata, err := next.HandleDeserialize(ctx, in)
		if resp, ok := out.RawResponse.(*smithyhttp.Response); ok && resp != nil && resp.Response != nil {
			if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
				c.noteDate(sent, time.Now(), date)
			}
		}
		return out, metadata, err
	}), middleware.After)
}
