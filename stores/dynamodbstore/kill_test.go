package dynamodbstore_test

import (
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/stores/dynamodbstore"
)

var deaths = flag.Int("deaths", 4, "how many processes the test kills")

// Processes that share a table are killed at random. Acknowledged answers stay. An operation is executed again only if its
// attempt was killed or overtaken before the acknowledgement. Each operation is charged once.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	s := newService(t)
	effects := filepath.Join(t.TempDir(), "effects")
	operations, provider := killtest.NewOperations(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*deaths, operations, provider.Env(),
		mortalURL+"="+s.startServer(t), mortalEffects+"="+effects))

	repeated, err := operations.Explain(t.Context(), dynamodbstore.New(s.client, testOptions), effects)
	require.NoError(t, err)
	require.NoError(t, provider.Explain(operations.Acknowledged()...))
	_, calls, charges := provider.Counts()
	for name, n := range map[string]int{
		"deaths": *deaths, "operations-acknowledged": len(operations.Acknowledged()), "operations-executed-again": repeated,
		"calls-of-the-provider": calls, "charges": charges,
	} {
		t.Attr(name, strconv.Itoa(n))
	}
}

const (
	mortalURL     = "DYNAMODBSTORE_MORTAL"
	mortalEffects = "DYNAMODBSTORE_MORTAL_EFFECTS"
)

// executeUntilKilled executes operations until the process is killed.
func executeUntilKilled(url string) {
	killtest.RunProcess(func() (killtest.Work, error) {
		store := dynamodbstore.New(newClient(url, http.DefaultTransport), testOptions)
		return killtest.Execute(store, os.Getenv(mortalEffects))
	})
}
