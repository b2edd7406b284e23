package dynamodbstore

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Store keeps records in a table of DynamoDB. A claim is a lease: exactly once holds while the owner lives and the clocks of
// all processes agree within [Options].Skew. One conditional write decides each step. A Store is safe for concurrent use. A
// Store can inspect, list, forget and resolve records.
type Store struct {
	client         Client
	opts           Options
	optionFaults   error
	clock          *clock
	now            func() time.Time
	maxContentSize int // limit for the stored response and for the checkpoints, in bytes
	callOptions    func(*dynamodb.Options)
}

var _ idempotency.Store = (*Store)(nil)

// itemContentSize is the room for a response or for checkpoints in an item of 400 KB. The remaining attributes and the names of
// all attributes need up to 4 KB.
const itemContentSize = 400<<10 - 4<<10

// New returns a store on client. The caller owns client. [CreateTable] creates the table. Faults of opts are errors of
// [idempotency.New] and of the methods of the store, which report all faults together.
func New(client Client, opts Options) *Store {
	s := &Store{
		client: client, opts: opts, optionFaults: opts.findFaults(), clock: newClock(opts.skewOrDefault()), now: time.Now,
		maxContentSize: itemContentSize,
	}
	s.callOptions = func(o *dynamodb.Options) {
		// The store retries by itself, because the error of each request tells whether the request may have had an effect.
		o.Retryer = aws.NopRetryer{}
		o.APIOptions = append(o.APIOptions, s.clock.watchReplies)
	}
	return s
}

// Validate implements [idempotency.Validator].
func (s *Store) Validate(idempotency.RunnerOptions) error {
	if s.client == nil {
		return errors.Join(s.optionFaults, errors.New("dynamodbstore: the client is nil"))
	}
	return s.optionFaults
}

// Begin implements [idempotency.Store]. One request claims a new key or the key of an expired record, or returns the record of
// a held key. A second request claims the key of a released or abandoned record. After a lost reply, the next request recognises
// the token of the claim. If all replies are lost, the error is an [idempotency.ClaimInDoubtError].
//
// The first claim of a process takes one more request, to compare the clock with the clock of the service. The comparison is
// repeated after five minutes without requests, and after the clock was set.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.optionFaults != nil {
		return idempotency.Record{}, nil, s.optionFaults
	}
	return sqlstore.Claim(ctx, leases{s}, key, &request)
}

// nowMicros returns the time of this machine in microseconds.
func (s *Store) nowMicros() int64 { return s.now().UnixMicro() }

// endOf returns the time in microseconds at which d has passed by every clock within the skew.
func (s *Store) endOf(d time.Duration) int64 {
	return s.nowMicros() + sqlstore.Micros(d) + sqlstore.Micros(s.opts.skewOrDefault())
}

// readItem reads the item of a record with strong consistency. Without an item, the result is nil.
func (s *Store) readItem(ctx context.Context, operation uuid.UUID) (map[string]value, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: aws.String(s.opts.tableName()), Key: itemKey(operation), ConsistentRead: aws.Bool(true),
	}, s.callOptions)
	if err != nil || len(out.Item) == 0 {
		return nil, err
	}
	return out.Item, nil
}

// compareClocks returns an error that wraps ErrClock if the clock of this machine is wrong. Without a recent reply,
// compareClocks sends a request first.
func (s *Store) compareClocks(ctx context.Context) error {
	if !s.clock.isRecentlyChecked(time.Now()) {
		if _, err := s.readItem(ctx, uuid.Nil); err != nil {
			// A wrong clock may be the cause of err, because the service refuses signatures with a wrong time.
			return errors.Join(s.clock.checkDifference(), err)
		}
		s.clock.noteReply(time.Now())
	}
	return s.clock.checkDifference()
}
