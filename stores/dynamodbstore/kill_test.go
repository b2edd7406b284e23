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

// Processes that share a table are killed at random. Whatever was acknowledged stays, and an operation is executed again
// only if its attempt was killed, or overtaken, before it was acknowledged. It is charged once.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	s := newService(t)
	effects := filepath.Join(t.TempDir(), "effects")
	said, provider := killtest.NewOperations(), killtest.NewProvider(t)
	require.NoError(t, killtest.KillAll(*deaths, said, provider.Env(), mortalURL+"="+s.serve(t), mortalEffects+"="+effects))

	repeated, err := said.Explain(t.Context(), dynamodbstore.New(s.client, local), effects)
	require.NoError(t, err)
	require.NoError(t, provider.Explain(said.Acknowledged()...))
	_, calls, charges := provider.Counts()
	for name, n := range map[string]int{
		"deaths": *deaths, "operations-acknowledged": len(said.Acknowledged()), "operations-executed-again": repeated,
		"calls-of-the-provider": calls, "charges": charges,
	} {
		t.Attr(name, strconv.Itoa(n))
	}
}

const (
	mortalURL     = "DYNAMODBSTORE_MORTAL"
	mortalEffects = "DYNAMODBSTORE_MORTAL_EFFECTS"
)

// live executes operations until the process is killed.
func live(url string) {
	killtest.Live(func() (killtest.Work, error) {
		store := dynamodbstore.New(newClient(url, http.DefaultTransport), local)
		return killtest.Execute(store, os.Getenv(mortalEffects))
	})
}
