package dynamodbstore

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Store keeps records in a table of DynamoDB. A claim is a lease: exactly once holds as long as its owner lives, and as the
// clocks of all processes agree within [Options].Skew. One conditional write decides each step. It is safe for concurrent
// use.
type Store struct {
	client  Client
	opts    Options
	faults  error // of the options
	clock   *clock
	time    func() time.Time
	largest int // bytes of an answer, or of the checkpoints, that an item has room for
	calls   func(*dynamodb.Options)
}

var _ idempotency.Store = (*Store)(nil)

// largest is what an item of 400 KB holds beside the other attributes, and their names.
const largest = 400<<10 - 4<<10

// New returns a store on client, which the caller owns. [CreateTable] makes the table. Faults of opts are errors of
// [idempotency.New], Begin and Check, which report all of them together.
func New(client Client, opts Options) *Store {
	s := &Store{
		client: client, opts: opts, faults: opts.validate(), clock: newClock(opts.skew()), time: time.Now, largest: largest,
	}
	s.calls = func(o *dynamodb.Options) {
		o.Retryer = aws.NopRetryer{} // the store tells what has had an effect by the one answer, and tries again itself
		o.APIOptions = append(o.APIOptions, s.clock.watch)
	}
	return s
}

// Validate implements [idempotency.Validator].
func (s *Store) Validate(idempotency.RunnerOptions) error {
	if s.client == nil {
		return errors.Join(s.faults, errors.New("dynamodbstore: the client is nil"))
	}
	return s.faults
}

// Begin implements [idempotency.Store]. One request claims a new key, or gets the record of one that is held. One more
// claims the key of a record that was released, has lapsed, or has expired and is still there. If the answer to a request
// is lost, the next one recognises the token of the claim. If no answer comes, the claim is in doubt, see
// [idempotency.ClaimInDoubtError].
//
// The first claim of a process takes one more request, which compares the clock with that of the service. So does the first
// one after five minutes without any request, or after the clock was set.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.faults != nil {
		return idempotency.Record{}, nil, s.faults
	}
	return sqlstore.Claim(ctx, leases{s}, key, &request)
}

// now is the time in microseconds, by the clock of this machine.
func (s *Store) now() int64 { return s.time().UnixMicro() }

// after returns when d is over, for everybody whose clock agrees within the skew.
func (s *Store) after(d time.Duration) int64 {
	return s.now() + sqlstore.Micros(d) + sqlstore.Micros(s.opts.skew())
}

// get reads a record with all that was written before. The item is nil if there is none.
func (s *Store) get(ctx context.Context, digest []byte) (map[string]value, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: aws.String(s.opts.table()), Key: keyOf(digest), ConsistentRead: aws.Bool(true),
	}, s.calls)
	if err != nil || len(out.Item) == 0 {
		return nil, err
	}
	return out.Item, nil
}

// compareClocks returns an error if the clock of this machine cannot be relied on. It asks the service if that was not done
// lately.
func (s *Store) compareClocks(ctx context.Context) error {
	if !s.clock.isChecked(time.Now()) {
		if _, err := s.get(ctx, make([]byte, 32)); err != nil {
			return errors.Join(s.clock.fault(), err) // a signature may be refused for its time
		}
		s.clock.answered(time.Now())
	}
	return s.clock.fault()
}
