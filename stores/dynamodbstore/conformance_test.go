package dynamodbstore_test

import (
	"flag"
	"net/http"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

var (
	thorough = flag.Bool("thorough", false, "run the suites in each way, and not only what differs there")
	endpoint = flag.String("endpoint", "", "the URL of another service or emulator for TestConformanceOverHTTP")
)

// The suites use answers of a megabyte, which are too large for the service; TestLargeAnswer covers large answers. The suite
// of an Inspector counts the records of the table, so each case has its own table.
func TestConformance(t *testing.T) {
	t.Parallel()
	runSuites(t, func(*testing.T) idempotency.Store { return dynamodbstore.New(newTable(t), testOptions).LiftSizeLimit() })
	testservice.CheckStatus(t, dynamodbstore.New(newTable(t), testOptions))
}

func runSuites(t *testing.T, newStore func(*testing.T) idempotency.Store) {
	idempotencytest.Run(t, newStore)
	idempotencytest.RunSteps(t, newStore)
	idempotencytest.RunInspector(t, newStore)
	idempotencytest.RunResolver(t, newStore)
}

// Over HTTP, the suites include the encoding and the errors of the SDK, and a Date in each reply.
func TestConformanceOverHTTP(t *testing.T) {
	t.Parallel()
	newStore := func(t *testing.T) idempotency.Store {
		return dynamodbstore.New(newService(t).newHTTPClient(t), testOptions).LiftSizeLimit()
	}
	if *endpoint != "" {
		newStore = storeOnEndpoint
	}
	if *thorough {
		runSuites(t, newStore)
		return
	}
	idempotencytest.RunSteps(t, newStore)
}

// An older service, or a proxy of the service, does not return the item after a failed condition.
func TestConformanceWithoutOldItems(t *testing.T) {
	t.Parallel()
	newStore := func(t *testing.T) idempotency.Store {
		table := newTable(t)
		table.returnsOldItem = false
		return dynamodbstore.New(table, testOptions).LiftSizeLimit()
	}
	if *thorough {
		runSuites(t, newStore)
		return
	}
	idempotencytest.Run(t, newStore)
}

// storeOnEndpoint returns a store on the service at the flag endpoint, with its own table.
func storeOnEndpoint(t *testing.T) idempotency.Store {
	opts := dynamodbstore.Options{Table: uuid.NewString(), Skew: testOptions.Skew}
	client := newClient(*endpoint, http.DefaultTransport)
	require.NoError(t, dynamodbstore.CreateTable(t.Context(), client, opts))
	return dynamodbstore.New(client, opts).LiftSizeLimit()
}
