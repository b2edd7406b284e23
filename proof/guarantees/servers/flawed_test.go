package servers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The audit finds a server that keeps less than it says, a fault that costs nothing, and a service that runs unprotected.
func TestAuditFindsBrokenPromises(t *testing.T) {
	t.Parallel()
	durable := []string{"--appendonly", "yes", "--appendfsync", "always"}
	failOpen := brief
	failOpen.FailOpen, failOpen.StoreTimeout = true, 20*time.Millisecond
	none := func(time.Time) loss { return loss{} }
	all := func(crash time.Time) loss { return loss{to: crash, until: crash} }
	for name, row := range map[string]struct {
		args     []string
		opts     idempotency.Options
		expected func(crash time.Time) loss
		problem  string
	}{
		"nothing":                 {durable, patient, none, ""},
		"what is forgotten":       {nil, patient, none, "its answer is lost"},
		"what is not forgotten":   {durable, patient, all, "its answer is not lost"},
		"what runs without claim": {durable, failOpen, none, "its answer is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, row.args...)
			s := newShop(t, row.opts, &memory{}, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
			var crash time.Time
			s.open(50, func() {
				crash = time.Now()
				server.Crash()
				if row.opts.FailOpen {
					s.await(10)
				}
				require.NoError(t, server.Restart())
			})
			found := s.audit(t, row.expected(crash), false)
			if row.problem == "" {
				require.Empty(t, found.broken)
				return
			}
			require.Contains(t, strings.Join(found.broken, "\n"), row.problem)
		})
	}
}
