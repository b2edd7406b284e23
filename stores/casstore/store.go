package casstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

// Table keeps values of up to some megabytes under keys, each of which has 64 characters of 0-9 and a-f. The package
// documentation says what the database must promise. A Table is safe for concurrent use, and its methods heed ctx. They do not
// modify the data that they are given, and nobody modifies the data that they return.
//
// Besides [ErrNotFound] and [ErrConflict], a call that changes something may return an error that wraps
//
//   - [idempotency.ErrStoreFull]: there is no room for a value, or for one of this size. An answer that is too large is then
//     stored with Omitted set;
//   - [idempotency.ErrStoreBusy]: the database works, but has no capacity;
//   - [errors.ErrUnsupported]: the database cannot keep the promise.
//
// With each of these the call has had no effect. After any other error it may have had an effect, or may still have one.
type Table interface {
	// Get returns the value of key, or [ErrNotFound].
	Get(ctx context.Context, key string) (Value, error)

	// Create stores data under key if there is no value, and returns its version. Otherwise the error is [ErrConflict].
	// The value is kept for at least ttl.
	Create(ctx context.Context, key string, data []byte, ttl time.Duration) (version string, err error)

	// Replace stores data under key if the present value has that version, and returns the new one. Otherwise, and
	// if there is no value, the error is [ErrConflict]. The value is kept for at least ttl from now.
	Replace(ctx context.Context, key, version string, data []byte, ttl time.Duration) (newVersion string, err error)

	// Delete removes the value of key if it has that version. Otherwise, and if there is no value, the error is [ErrConflict].
	// Only Forget of [Store] calls it.
	Delete(ctx context.Context, key, version string) error
}

// Value is what a [Table] holds under a key.
type Value struct {
	Data []byte

	// Version identifies the write that has stored Data. It is never empty in a Value. Create and Replace return an empty
	// one if the database does not tell it.
	Version string
}

// Errors of a [Table].
var (
	ErrNotFound = errors.New("casstore: no value")
	ErrConflict = errors.New("casstore: another value, or none")
)

// Options are the settings of a [Store]. The zero value of each field is its default.
type Options struct {
	// Skew is how far the clocks of two processes may be apart. Each lease and each record lasts that much longer than it
	// was asked for. Zero means ten seconds, and an hour is the most. All processes that share a table have the same Skew.
	Skew time.Duration

	// CallTimeout is how long the store waits for one call of the table before it makes the step again, within the deadline of
	// the step. Zero means one second.
	CallTimeout time.Duration
}

// Store keeps records in a [Table]. It is safe for concurrent use. It can inspect, forget and resolve the record of a key, but
// List returns [errors.ErrUnsupported], because a Table cannot list.
type Store struct {
	table       Table
	skew        time.Duration
	callTimeout time.Duration
	faults      error // of the options
	now         func() time.Time
}

// New returns a store on table. Faults of opts are errors of [idempotency.New] and of the methods of the store, which
// report all of them together.
func New(table Table, opts Options) *Store {
	return &Store{
		table: table, skew: cmp.Or(opts.Skew, 10*time.Second), callTimeout: cmp.Or(opts.CallTimeout, time.Second),
		faults: faultsOf(table, opts), now: time.Now,
	}
}

// longestSkew is more than any clock is off that is kept in step.
const longestSkew = time.Hour

func faultsOf(table Table, opts Options) error {
	var faults []error
	if table == nil {
		faults = append(faults, errors.New("casstore: the table is nil"))
	}
	if opts.Skew < 0 || opts.Skew > longestSkew {
		faults = append(faults, fmt.Errorf("casstore: Skew is %s, not from 0 to %s", opts.Skew, longestSkew))
	}
	if opts.CallTimeout < 0 {
		faults = append(faults, fmt.Errorf("casstore: CallTimeout is %s, less than zero", opts.CallTimeout))
	}
	return errors.Join(faults...)
}

// Validate implements [idempotency.Validator].
func (s *Store) Validate(idempotency.RunnerOptions) error { return s.faults }

// Begin implements [idempotency.Store]. One call of the table claims a new key. If the key has a value, a second call reads
// it, and a third one claims the key if the record permits it.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.faults != nil {
		return idempotency.Record{}, nil, s.faults
	}
	return sqlstore.Claim(ctx, &leases{Store: s}, key, &request)
}

// after returns when d is over for everybody whose clock agrees within the skew, in microseconds.
func (s *Store) after(d time.Duration) int64 {
	return s.now().UnixMicro() + sqlstore.Micros(d) + sqlstore.Micros(s.skew)
}
