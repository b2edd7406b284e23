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

// Table keeps values of up to some megabytes. A key is the ID of an operation, see [idempotency.Key.OperationID], as text: 36
// characters of 0-9, a-f and "-". The package documentation states what the database must guarantee. A Table is safe for
// concurrent use, and its methods return when ctx ends. The methods do not modify data, and the store does not modify returned
// data.
//
// Besides [ErrNotFound] and [ErrConflict], a write may return an error that wraps one of these, if the write has had no effect:
//
//   - [idempotency.ErrStoreFull]: the database lacks space, or the value is too large. The store then stores an answer with
//     Omitted set;
//   - [idempotency.ErrStoreBusy]: the database works, but has no capacity;
//   - [errors.ErrUnsupported]: the database cannot give the guarantees.
//
// After any other error, the store assumes that the write has had an effect, or may have one later.
type Table interface {
	// Get returns the value of key, or [ErrNotFound].
	Get(ctx context.Context, key string) (Value, error)

	// Create stores data under key if key has no value, and returns the version. Otherwise the error is [ErrConflict]. The
	// database keeps the value for at least ttl.
	Create(ctx context.Context, key string, data []byte, ttl time.Duration) (version string, err error)

	// Replace stores data under key if the value of key has the given version, and returns the new version. Otherwise, and if key
	// has no value, the error is [ErrConflict]. The database keeps the value for at least ttl from now.
	Replace(ctx context.Context, key, version string, data []byte, ttl time.Duration) (newVersion string, err error)

	// Delete removes the value of key if the value has the given version. Otherwise, and if key has no value, the error is
	// [ErrConflict]. Only Forget of [Store] calls Delete.
	Delete(ctx context.Context, key, version string) error
}

// Value is the value of a key in a [Table].
type Value struct {
	Data []byte

	// Version identifies the write of Data. The Version of a Value is never empty. Create and Replace return an empty version if
	// the database does not report versions of writes.
	Version string
}

// Errors of a [Table].
var (
	ErrNotFound = errors.New("casstore: no value")
	ErrConflict = errors.New("casstore: another value, or none")
)

// Options are the settings of a [Store]. The zero value of each field is its default.
type Options struct {
	// Skew is the largest difference between the clocks of two processes. Each lease and each record lasts longer by Skew than
	// requested. Zero means ten seconds; the maximum is an hour. All processes that share a table need the same Skew.
	Skew time.Duration

	// CallTimeout bounds one call of the table. After CallTimeout the store repeats the step, within the deadline of the step.
	// Zero means one second.
	CallTimeout time.Duration
}

// Store keeps records in a [Table]. A Store is safe for concurrent use. A Store can inspect, forget and resolve the record of a key,
// but List returns [errors.ErrUnsupported], because a Table cannot list keys.
type Store struct {
	table        Table
	skew         time.Duration
	callTimeout  time.Duration
	optionFaults error
	now          func() time.Time
}

// New returns a store on table. Faults of opts are errors of [idempotency.New] and of the methods of the store, which report all
// faults together.
func New(table Table, opts Options) *Store {
	return &Store{
		table: table, skew: cmp.Or(opts.Skew, 10*time.Second), callTimeout: cmp.Or(opts.CallTimeout, time.Second),
		optionFaults: checkOptions(table, opts), now: time.Now,
	}
}

// longestSkew is far above the error of a synchronised clock.
const longestSkew = time.Hour

// checkOptions returns all faults joined.
func checkOptions(table Table, opts Options) error {
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
func (s *Store) Validate(idempotency.RunnerOptions) error { return s.optionFaults }

// Begin implements [idempotency.Store]. One call of the table claims a new key. If the key has a value, a second call reads the value,
// and a third call claims the key if the record allows a claim.
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	if s.optionFaults != nil {
		return idempotency.Record{}, nil, s.optionFaults
	}
	return sqlstore.Claim(ctx, &leases{Store: s}, key, &request)
}

// endOf returns the time in microseconds at which d has passed by every clock within the skew.
func (s *Store) endOf(d time.Duration) int64 {
	return s.now().UnixMicro() + sqlstore.Micros(d) + sqlstore.Micros(s.skew)
}
