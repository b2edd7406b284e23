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

// The audit finds a server that loses more than its settings say, a fault that costs nothing, and a service whose handlers run
// without a claim.
func TestAuditFindsBrokenPromises(t *testing.T) {
	t.Parallel()
	durable := []string{"--appendonly", "yes", "--appendfsync", "always"}
	failOpen := briefOptions
	failOpen.FailOpen, failOpen.StoreTimeout = true, 20*time.Millisecond
	none := func(time.Time) loss { return loss{} }
	all := func(crash time.Time) loss { return loss{lostBefore: crash, affectedBefore: crash} }
	for name, row := range map[string]struct {
		serverArgs      []string
		options         idempotency.Options
		expectedLoss    func(crash time.Time) loss
		expectedProblem string
	}{
		"durable server":              {durable, patientOptions, none, ""},
		"server forgets answers":      {nil, patientOptions, none, "its answer is lost"},
		"server forgets too little":   {durable, patientOptions, all, "its answer is not lost"},
		"handlers run without claims": {durable, failOpen, none, "its answer is lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Redis(t, row.serverArgs...)
			s := newShop(t, row.options, &memoryLedger{}, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
			var crash time.Time
			s.payDuring(50, func() {
				crash = time.Now()
				server.Crash()
				if row.options.FailOpen {
					s.awaitAnswers(10)
				}
				require.NoError(t, server.Restart())
			})
			found := s.auditSales(t, row.expectedLoss(crash), false)
			if row.expectedProblem == "" {
				require.Empty(t, found.brokenPromises)
				return
			}
			require.Contains(t, strings.Join(found.brokenPromises, "\n"), row.expectedProblem)
		})
	}
}
