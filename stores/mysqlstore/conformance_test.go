package mysqlstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/seal"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t, pool(t, server(t).DSN()))
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
}

// The store is the same whatever the settings of the driver and of the session, and sealed, too.
func TestConformanceWithAllSettings(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t, pool(t, server(t).DSN(), allSettings...))
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
	})
	require.NoError(t, err)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return sealed })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return sealed })
}

// allSettings of the driver and of the session are not the default.
var allSettings = []string{"clientFoundRows=true", "interpolateParams=true", "charset=latin1", "parseTime=true",
	"loc=Local", "time_zone=%27-03%3A30%27", "tx_isolation=%27SERIALIZABLE%27",
	"sql_mode=%27ANSI,TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,NO_BACKSLASH_ESCAPES%27"}
