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

// skew is the option Skew of the stores: the largest difference between clocks that the stores allow for.
const skew = 100 * time.Millisecond

// The calls of a history go in turn to processes whose clocks differ by Skew. With such clocks, leases and records end at the
// requested time at the earliest, and at most twice Skew later.
func TestDynamoDBIsLinearizable(t *testing.T) {
	t.Parallel()
	requireLinearizable(t, 2_000, newSkewedSubject(t, skew, skew))
}

// If the clocks differ by more than Skew, leases and records end before their time.
func TestDynamoDBBeyondSkew(t *testing.T) {
	t.Parallel()
	violation := exploreHistories(t, 100_000, newSkewedSubject(t, 2*skew, skew))
	require.NotEmpty(t, violation, "of which the first that shows it is the last")
}

// The early end is the only fault of such clocks. A model that allows for the same difference between the clocks explains all
// histories: an overtaken owner changes nothing, and the store replays an answer until the end of its record.
func TestDynamoDBBeyondSkewOnlyEndsEarly(t *testing.T) {
	t.Parallel()
	requireLinearizable(t, 1_000, newSkewedSubject(t, 3*skew, 3*skew))
}

// newSkewedSubject returns a subject of three processes. One process has the right time, and the clocks of the other two processes
// differ by apart. The model allows for clocks that differ by allowed. The leases in the model are longer by Skew than the leases
// that the store is asked for, because by the right time the leases end that much later. Each history has its own service and its
// own time.
func newSkewedSubject(t *testing.T, apart, allowed time.Duration) subject {
	const rounding = 2 * time.Microsecond
	return subject{timeUnit: 3 * skew, clockError: allowed/2 + rounding, runInBubble: func(do func(idempotency.Store)) {
		synctest.Test(t, func(t *testing.T) {
			ps, service := &storeProcesses{}, emulated.DynamoDBInside(t)
			for _, ahead := range []time.Duration{-apart / 2, 0, apart / 2} {
				ps.stores = append(ps.stores, dynamodbstore.New(shiftedService{service, ahead}, dynamodbstore.Options{Skew: skew}))
			}
			do(ps)
		})
	}}
}

// storeProcesses is a store whose calls go to stores in turn. The requested leases and TTLs are shortened by Skew.
type storeProcesses struct {
	stores []*dynamodbstore.Store
	turn   atomic.Int64
}

func (ps *storeProcesses) nextStore() *dynamodbstore.Store {
	return ps.stores[int(ps.turn.Add(1))%len(ps.stores)]
}

func (ps *storeProcesses) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	request.Lease -= skew
	request.TTL -= skew
	record, claim, err := ps.nextStore().Begin(ctx, key, request)
	if claim != nil {
		record.LeaseLeft += skew // the owner gets the lease that it has requested
		claim = newShorterClaim(claim)
	}
	if inDoubt, ok := errors.AsType[*idempotency.ClaimInDoubtError](err); ok {
		inDoubt.Claim = newShorterClaim(inDoubt.Claim)
	}
	return record, claim, err
}

func (ps *storeProcesses) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return ps.nextStore().Inspect(ctx, key)
}

func (ps *storeProcesses) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	return ps.nextStore().List(ctx, request)
}

func (ps *storeProcesses) Forget(ctx context.Context, seen idempotency.Entry) error {
	return ps.nextStore().Forget(ctx, seen)
}

func (ps *storeProcesses) Resolve(ctx context.Context, seen idempotency.Entry, resolution idempotency.Resolution) error {
	resolution.TTL -= skew
	return ps.nextStore().Resolve(ctx, seen, resolution)
}

// shorterClaim shortens the requested leases and TTLs of a claim by Skew. It makes one call at a time, because a goroutine that
// waits for the mutex of the claim would stop the time of its bubble.
type shorterClaim struct {
	idempotency.Claim
	turn chan struct{}
}

func newShorterClaim(claim idempotency.Claim) shorterClaim {
	return shorterClaim{claim, make(chan struct{}, 1)}
}

func (c shorterClaim) callAlone(do func() error) error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	return do()
}

func (c shorterClaim) Extend(ctx context.Context, lease time.Duration) error {
	return c.callAlone(func() error { return c.Claim.Extend(ctx, lease-skew) })
}

func (c shorterClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	return c.callAlone(func() error { return c.Claim.Complete(ctx, resp, ttl-skew) })
}

func (c shorterClaim) Release(ctx context.Context, end idempotency.Release) error {
	if end.TTL > 0 { // zero frees the key
		end.TTL -= skew
	}
	return c.callAlone(func() error { return c.Claim.Release(ctx, end) })
}

// shiftedService is the DynamoDB service as seen by a process whose clock is ahead by clockAhead. It shifts all times that the
// process writes, compares and reads, so that the process can keep the right clock. A small part of the requests and replies is
// lost.
type shiftedService struct {
	*dynamodb.Client
	clockAhead time.Duration
}

type item = map[string]types.AttributeValue

// shiftTimes returns a copy of the item from with its times shifted by by.
func shiftTimes(from item, by time.Duration) item {
	to := maps.Clone(from)
	for _, name := range []string{"lease", "expires", ":lease", ":was_lease", ":expires", ":now"} {
		if at, ok := to[name].(*types.AttributeValueMemberN); ok {
			n, _ := strconv.ParseInt(at.Value, 10, 64)
			to[name] = &types.AttributeValueMemberN{Value: strconv.FormatInt(n+by.Microseconds(), 10)}
		}
	}
	return to
}

func (s shiftedService) GetItem(
	ctx context.Context, in *dynamodb.GetItemInput, opts ...func(*dynamodb.Options),
) (*dynamodb.GetItemOutput, error) {
	delayMessage()
	out, err := s.Client.GetItem(ctx, in, opts...)
	delayMessage()
	if err == nil {
		out.Item = shiftTimes(out.Item, -s.clockAhead)
	}
	return out, err
}

var errMessageLost = errors.New("the network has lost it")

func (s shiftedService) UpdateItem(
	ctx context.Context, in *dynamodb.UpdateItemInput, opts ...func(*dynamodb.Options),
) (*dynamodb.UpdateItemOutput, error) {
	lost := rand.IntN(50)
	if lost == 0 {
		return nil, loseMessage(ctx)
	}
	sent := *in
	sent.ExpressionAttributeValues = shiftTimes(in.ExpressionAttributeValues, s.clockAhead)
	delayMessage()
	out, err := s.Client.UpdateItem(ctx, &sent, opts...)
	delayMessage()
	if failed, ok := errors.AsType[*types.ConditionalCheckFailedException](err); ok {
		failed.Item = shiftTimes(failed.Item, -s.clockAhead)
	}
	if lost == 1 {
		return nil, loseMessage(ctx)
	}
	return out, err
}

// delayMessage waits as long as a message takes to the service, or back. The delays are short because a claim whose request and
// reply take more than a tenth of its lease would be renewed before Begin returns the claim.
func delayMessage() { time.Sleep(rand.N(skew / 10)) }

// loseMessage counts a try without a reply, and returns the error of the try.
func loseMessage(ctx context.Context) error {
	if tries, ok := ctx.Value(failedTriesKey{}).(*failedTries); ok {
		tries.Add(1)
	}
	return errMessageLost
}
