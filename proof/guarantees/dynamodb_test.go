package guarantees_test

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/emulated"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

const skew = 100 * time.Millisecond

// The calls of a history go to processes in turn, whose clocks differ by as much as Skew. Within it no lease, and no record,
// ends before the time that was asked for: from that on, until twice Skew later, it may.
func TestDynamoDBIsLinearizable(t *testing.T) {
	t.Parallel()
	isLinearizable(t, 2_000, differing(t, skew, skew))
}

// If the clocks differ by more than Skew, leases and records end before their time.
func TestDynamoDBBeyondSkew(t *testing.T) {
	t.Parallel()
	require.NotEmpty(t, explore(t, 100_000, differing(t, 2*skew, skew)), "of which the first that shows it is the last")
}

// Nothing else happens then. If the model allows for the end by clocks that differ so much, it explains what the store does:
// an owner that was overtaken changes nothing, and an answer is replayed until its record ends.
func TestDynamoDBBeyondSkewOnlyEndsEarly(t *testing.T) {
	t.Parallel()
	isLinearizable(t, 1_000, differing(t, 3*skew, 3*skew))
}

// differing returns three processes, of which one has the right time, and two have clocks that differ by apart. The model
// allows for clocks that differ by as much as allowed. It is told of leases that are longer by Skew than those that the store
// is asked for: by the right time, that is when they end. Each history has a service and a time of its own.
func differing(t *testing.T, apart, allowed time.Duration) subject {
	const rounding = 2 * time.Microsecond
	return subject{unit: 3 * skew, slop: allowed/2 + rounding, bubble: func(do func(idempotency.Store)) {
		synctest.Test(t, func(t *testing.T) {
			ps, service := &processes{}, emulated.DynamoDBInside(t)
			for _, ahead := range []time.Duration{-apart / 2, 0, apart / 2} {
				ps.stores = append(ps.stores, dynamodbstore.New(shifted{service, ahead}, dynamodbstore.Options{Skew: skew}))
			}
			do(ps)
		})
	}}
}

// processes are stores that take turns. Each is asked for times that are shorter by Skew.
type processes struct {
	stores []*dynamodbstore.Store
	turn   atomic.Int64
}

func (ps *processes) next() *dynamodbstore.Store {
	return ps.stores[int(ps.turn.Add(1))%len(ps.stores)]
}

func (ps *processes) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	request.Lease -= skew
	request.TTL -= skew
	record, claim, err := ps.next().Begin(ctx, key, request)
	if claim != nil {
		record.LeaseLeft += skew // an owner is told of what it has asked for
		claim = newShorter(claim)
	}
	if inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err); ok {
		inDoubt.Claim = newShorter(inDoubt.Claim)
	}
	return record, claim, err
}

func (ps *processes) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return ps.next().Inspect(ctx, key)
}

func (ps *processes) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	return ps.next().List(ctx, request)
}

func (ps *processes) Forget(ctx context.Context, seen idempotency.Entry) error {
	return ps.next().Forget(ctx, seen)
}

func (ps *processes) Resolve(ctx context.Context, seen idempotency.Entry, resolution idempotency.Resolution) error {
	resolution.TTL -= skew
	return ps.next().Resolve(ctx, seen, resolution)
}

// shorter is a claim that is asked for times that are shorter by Skew. It does one thing at a time: a goroutine that waits
// for the mutex of the claim itself would keep the time of its bubble from going on.
type shorter struct {
	idempotency.Claim
	turn chan struct{}
}

func newShorter(claim idempotency.Claim) shorter { return shorter{claim, make(chan struct{}, 1)} }

func (c shorter) alone(do func() error) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	return do()
}

func (c shorter) Extend(ctx context.Context, lease time.Duration) error {
	return c.alone(func() error { return c.Claim.Extend(ctx, lease-skew) })
}

func (c shorter) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	return c.alone(func() error { return c.Claim.Complete(ctx, resp, ttl-skew) })
}

func (c shorter) Release(ctx context.Context, ttl time.Duration) error {
	if ttl > 0 { // else it frees the key
		ttl -= skew
	}
	return c.alone(func() error { return c.Claim.Release(ctx, ttl) })
}

// shifted is the service as a process sees it whose clock is ahead: with all times moved, of what it writes, of what it
// compares, and of what it reads. So the process need not have another clock. Now and then a request or its reply is lost.
type shifted struct {
	*dynamodb.Client
	ahead time.Duration
}

type item = map[string]types.AttributeValue

// move returns an item with its times moved.
func move(from item, by time.Duration) item {
	to := maps.Clone(from)
	for _, name := range []string{"lease", "expires", ":lease", ":was_lease", ":expires", ":now"} {
		if at, ok := to[name].(*types.AttributeValueMemberN); ok {
			n, _ := strconv.ParseInt(at.Value, 10, 64)
			to[name] = &types.AttributeValueMemberN{Value: strconv.FormatInt(n+by.Microseconds(), 10)}
		}
	}
	return to
}

func (s shifted) GetItem(
	ctx context.Context, in *dynamodb.GetItemInput, opts ...func(*dynamodb.Options),
) (*dynamodb.GetItemOutput, error) {
	travel()
	out, err := s.Client.GetItem(ctx, in, opts...)
	travel()
	if err == nil {
		out.Item = move(out.Item, -s.ahead)
	}
	return out, err
}

var errLost = errors.New("the network has lost it")

func (s shifted) UpdateItem(
	ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options),
) (*dynamodb.UpdateItemOutput, error) {
	lost := rand.IntN(50)
	if lost == 0 {
		return nil, lose(ctx)
	}
	sent := *in
	sent.ExpressionAttributeValues = move(in.ExpressionAttributeValues, s.ahead)
	travel()
	out, err := s.Client.UpdateItem(ctx, &sent, opts...)
	travel()
	if failed, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		failed.Item = move(failed.Item, -s.ahead)
	}
	if lost == 1 {
		return nil, lose(ctx)
	}
	return out, err
}

// travel takes a message to the service, or back. A claim that takes more than a tenth of its lease, there and back, would
// be renewed before it is granted.
func travel() { time.Sleep(rand.N(skew / 10)) }

// lose counts a try that was not answered.
func lose(ctx context.Context) error {
	if tries, ok := ctx.Value(failedTriesKey{}).(*failedTries); ok {
		tries.Add(1)
	}
	return errLost
}
