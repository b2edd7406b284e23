package dynamodbstore_test

import (
	"flag"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

var (
	thorough = flag.Bool("thorough", false, "run the suites in each way, and not only what differs there")
	endpoint = flag.String("endpoint", "", "the URL of another service or emulator for TestConformanceOverHTTP")
)

// The suites have answers of a megabyte, which the service has no room for: TestLargeAnswer shows what becomes of those.
// Those of an Inspector count what is in the table, so each case has a table of its own.
func TestConformance(t *testing.T) {
	t.Parallel()
	suites(t, func(*testing.T) idempotency.Store { return dynamodbstore.New(newTable(t), local).Lift() })
}

func suites(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	idempotencytest.Run(t, newStore)
	idempotencytest.RunSteps(t, newStore)
	idempotencytest.RunInspector(t, newStore)
	idempotencytest.RunResolver(t, newStore)
}

// The way is that of the SDK, with its encoding, its errors, and a Date in each answer.
func TestConformanceOverHTTP(t *testing.T) {
	t.Parallel()
	newStore := func(t *testing.T) idempotency.Store { return dynamodbstore.New(newService(t).listen(t), local).Lift() }
	if *endpoint != "" {
		newStore = elsewhere
	}
	if *thorough {
		suites(t, newStore)
		return
	}
	idempotencytest.RunSteps(t, newStore)
}

// An older service, or what stands in front of it, does not tell the item whose condition failed.
func TestConformanceWithoutOldItems(t *testing.T) {
	t.Parallel()
	newStore := func(t *testing.T) idempotency.Store {
		table := newTable(t)
		table.tellsOld = false
		return dynamodbstore.New(table, local).Lift()
	}
	if *thorough {
		suites(t, newStore)
		return
	}
	idempotencytest.Run(t, newStore)
}

// elsewhere returns a store on another service, in a table of its own.
func elsewhere(t *testing.T) idempotency.Store {
	opts := dynamodbstore.Options{Table: uuid.NewString(), Skew: local.Skew}
	client := newClient(*endpoint, http.DefaultTransport)
	require.NoError(t, dynamodbstore.CreateTable(t.Context(), client, opts))
	return dynamodbstore.New(client, opts).Lift()
}
