package idempotency_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/cache"
	"github.com/idempotency-go/idempotency/internal/testservice"
	"github.com/idempotency-go/idempotency/seal"
)

// picky is a store that can keep no record for longer than an hour.
type picky struct{ idempotency.Store }

func (picky) Validate(opts idempotency.RunnerOptions) error {
	if opts.TTL > time.Hour {
		return testservice.ErrDown
	}
	return nil
}

func (s picky) Unwrap() idempotency.Store { return s.Store }

// The faults of a store's options are those of New, together with all others, whatever stands in front of the store. So a
// service does not begin to refuse each request.
func TestNewReportsFaultsOfTheStore(t *testing.T) {
	t.Parallel()
	_, client := testservice.NewMiniredis(t)
	faulty := idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: -1})
	sealed, err := seal.New(faulty, seal.Options{Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}}})
	require.NoError(t, err)
	for name, test := range map[string]struct {
		store  idempotency.Store
		opts   idempotency.Options
		faults []string
	}{
		"memory": {faulty, idempotency.Options{}, []string{"MaxBytes -1 is negative"}},
		"memory without room": {
			idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 300}), idempotency.Options{},
			[]string{"MaxBytes 300 has no room for a record"},
		},
		"memory without room for a user": {
			idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 1}), idempotency.Options{},
			[]string{"MaxUserBytes 1 has no room for a record"},
		},
		"Redis": {
			idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: "{}"}), idempotency.Options{},
			[]string{"RedisOptions.Prefix"},
		},
		"Redis without a client": {
			idempotency.NewRedisStore(nil, idempotency.RedisOptions{}), idempotency.Options{}, []string{"client is nil"},
		},
		"cache": {
			cache.New(testservice.NewSpyStore(), cache.Options{MaxBytes: -1, MaxAge: -2}), idempotency.Options{},
			[]string{"cache: MaxBytes -1", "cache: MaxAge -2"},
		},
		"cache of nothing": {cache.New(nil, cache.Options{}), idempotency.Options{}, []string{"cache: Store is nil"}},
		"all together": {
			cache.New(sealed, cache.Options{MaxBytes: -3}), idempotency.Options{MaxBody: -4, TTL: -5},
			[]string{"cache: MaxBytes -3", "idempotency: MaxBytes -1", "MaxBody -4", "TTL -5"},
		},
		"other options": {
			picky{testservice.NewSpyStore()}, idempotency.Options{TTL: 2 * time.Hour}, []string{testservice.ErrDown.Error()},
		},
		"defaults": {
			cache.New(picky{testservice.NewSpyStore()}, cache.Options{}), idempotency.Options{}, []string{testservice.ErrDown.Error()},
		},
		"options that fit": {picky{testservice.NewSpyStore()}, idempotency.Options{TTL: time.Hour}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := idempotency.New(test.store, idempotency.SingleUser, test.opts)
			if test.faults == nil {
				require.NoError(t, err)
			}
			for _, fault := range test.faults {
				require.ErrorContains(t, err, fault)
			}
		})
	}
}
