package redistest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestMain(m *testing.M) {
	const library = "github.com/redis/go-redis/v9."
	testservice.Main(m, // a client by NewFailoverClusterClient never closes its listener to Sentinel
		goleak.IgnoreAnyFunction(library+"(*sentinelFailover).listen"),
		goleak.IgnoreAnyFunction(library+"(*channel).initHealthCheck.func1"),
		goleak.IgnoreAnyFunction(library+"(*channel).initMsgChan.func1"))
}
