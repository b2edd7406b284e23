package mysqlstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/seal"
)

// The store is the same whatever the settings of the driver and of the session. Each is in one of the rows.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string][]string{
		"default":                  nil,
		"found rows, interpolated": {"clientFoundRows=true", "interpolateParams=true"},
		"local time, serializable": {"parseTime=true", "loc=Local", "time_zone=%27-03%3A30%27",
			"tx_isolation=%27SERIALIZABLE%27"},
		"ANSI, another charset": {"charset=latin1",
			"sql_mode=%27ANSI,TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,NO_BACKSLASH_ESCAPES%27"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pool(t, server(t).DSN(), settings...)
			store, _ := newStore(t, db)
			idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
		})
	}
}

// The store conforms sealed, too.
func TestSealedStoreConforms(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t, pool(t, server(t).DSN()))
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
	})
	require.NoError(t, err)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return sealed })
}
