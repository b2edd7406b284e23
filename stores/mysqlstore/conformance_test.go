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
	store, _ := newStore(t, openPool(t, sharedServer(t).DSN()))
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return store })
}

// The store works the same with other settings of the driver and of the session, and when it is sealed.
func TestConformanceWithAllSettings(t *testing.T) {
	t.Parallel()
	store, _ := newStore(t, openPool(t, sharedServer(t).DSN(), allSettings...))
	sealed, err := seal.New(store, seal.Options{
		Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
	})
	require.NoError(t, err)
	idempotencytest.Run(t, func(*testing.T) idempotency.Store { return sealed })
	idempotencytest.RunSteps(t, func(*testing.T) idempotency.Store { return sealed })
}

// allSettings are settings of the driver and of the session that differ from the default.
var allSettings = []string{"clientFoundRows=true", "interpolateParams=true", "charset=latin1", "parseTime=true",
	"loc=Local", "time_zone=%27-03%3A30%27", "tx_isolation=%27SERIALIZABLE%27",
	"sql_mode=%27ANSI,TRADITIONAL,SIMULTANEOUS_ASSIGNMENT,NO_BACKSLASH_ESCAPES%27"}
