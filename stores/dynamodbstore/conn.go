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

// Client has the four calls that a store makes. A *dynamodb.Client has them. Whatever stands in front of one passes the
// functions on: they switch the retries of the SDK off, because the store has its own, and let the store see the Date of
// the answers.
type Client interface {
	GetItem(context.Context, *dynamodb.GetItemInput, ...func(*dynamodb.Options)) (*dynamodb.GetItemOutput, error)
	UpdateItem(context.Context, *dynamodb.UpdateItemInput, ...func(*dynamodb.Options)) (*dynamodb.UpdateItemOutput, error)
	DeleteItem(context.Context, *dynamodb.DeleteItemInput, ...func(*dynamodb.Options)) (*dynamodb.DeleteItemOutput, error)
	Scan(context.Context, *dynamodb.ScanInput, ...func(*dynamodb.Options)) (*dynamodb.ScanOutput, error)
}

// describer has the calls by which Check looks at the table.
type describer interface {
	DescribeTable(
		context.Context, *dynamodb.DescribeTableInput, ...func(*dynamodb.Options),
	) (*dynamodb.DescribeTableOutput, error)
	DescribeTimeToLive(
		context.Context, *dynamodb.DescribeTimeToLiveInput, ...func(*dynamodb.Options),
	) (*dynamodb.DescribeTimeToLiveOutput, error)
}

// tries is how often a step is begun while the service, or the way to it, fails.
const tries = 4

// retry repeats a step that may be repeated: while the service lacks capacity until ctx ends, and a few times if it fails.
// Its error wraps [idempotency.ErrStoreBusy] if it was the capacity that was missing when ctx ended.
func retry(ctx context.Context, step func() error) error {
	throttled := error(nil)
	for n, failed := 0, 0; ; n++ {
		err := step()
		switch {
		case isThrottled(err):
			throttled = err
		case err == nil || isAnswer(err) || isRefusal(err) || failed == tries-1:
			return err
		default:
			failed++
		}
		if sqlstore.Pause(ctx, sqlstore.Growing(n, 5*time.Millisecond)) {
			continue
		}
		if throttled != nil {
			return fmt.Errorf("%w: %w", idempotency.ErrStoreBusy, errors.Join(ctx.Err(), err))
		}
		return err
	}
}

// isRefusal reports whether a step has found that it must not be done.
func isRefusal(err error) bool {
	return errors.Is(err, idempotency.ErrRecordInvalid) || errors.Is(err, idempotency.ErrStoreFull) || errors.Is(err, ErrClock)
}

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
