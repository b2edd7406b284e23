package network_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/emulated"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

// The messages are the HTTP requests of the SDK.
func TestDynamoDBMessages(t *testing.T) {
	t.Parallel()
	strikeEveryMessage(t, newDynamoDBBackend(t))
}

func newDynamoDBBackend(t *testing.T) *backend {
	opts := dynamodbstore.Options{Skew: time.Millisecond} // all processes have one clock
	addr := emulated.DynamoDB(t)
	direct := dynamodbstore.New(emulated.DynamoDBClient(addr), opts)
	return &backend{
		effectLedger: newEffectCounter(),
		directStore:  direct,
		startProxy: func(t testing.TB) (*servertest.Proxy, func(testing.TB) idempotency.Store) {
			p := servertest.NewProxy(t, addr)
			return p, func(testing.TB) idempotency.Store {
				return dynamodbstore.New(emulated.DynamoDBClient(p.Addr()), opts)
			}
		},
		requireEmpty: func(t testing.TB) {
			running, err := direct.List(t.Context(), idempotency.ListRequest{States: []idempotency.State{idempotency.StateRunning}})
			require.NoError(t, err)
			require.Empty(t, running.Entries)
		},
	}
}
