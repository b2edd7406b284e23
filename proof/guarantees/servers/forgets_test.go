package servers_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/effort"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// blockingLedger is a ledger that blocks handlers until proceed is closed.
type blockingLedger struct {
	memoryLedger
	arrivedKeys chan string
	proceed     chan struct{}
}

func (g *blockingLedger) addEffect(ctx context.Context, key string) error {
	g.arrivedKeys <- key
	<-g.proceed
	return g.memoryLedger.addEffect(ctx, key)
}

// A Redis that forgets claims while their handlers run costs no answer. Without a request meanwhile, the owner creates the record
// again, and reports OutcomeRestored. With a request meanwhile, both handlers run, and both clients get the answer of the second
// handler, because the second handler has the claim.
func TestRedisForgetsClaims(t *testing.T) {
	t.Parallel()
	evict := func(t *testing.T, client *redis.Client) {
		used, err := strconv.Atoi(readInfo(t, client, "memory", "used_memory"))
		require.NoError(t, err)
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(used+4<<20)).Err())
		filler := strings.Repeat("x", 64<<10)
		for n := 0; countRecords(t, client) > 0; n++ {
			require.Less(t, n, 100_000, "nothing is evicted")
			require.NoError(t, client.Set(t.Context(), "filler "+strconv.Itoa(n), filler, 48*time.Hour).Err())
		}
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	}
	for name, row := range map[string]struct {
		serverArgs   []string
		forgetClaims func(t *testing.T, client *redis.Client)
	}{
		"FLUSHALL":     {nil, func(t *testing.T, client *redis.Client) { require.NoError(t, client.FlushAll(t.Context()).Err()) }},
		"allkeys-lru":  {[]string{"--maxmemory-policy", "allkeys-lru"}, evict},
		"volatile-ttl": {[]string{"--maxmemory-policy", "volatile-ttl"}, evict},
	} {
		for asked, runs := range map[string]int{"by nobody": 1, "meanwhile": 2} {
			t.Run(name+", asked "+asked, func(t *testing.T) {
				t.Parallel()
				server := servertest.Redis(t, row.serverArgs...)
				client := newClient(t, server)
				g := &blockingLedger{arrivedKeys: make(chan string, 1000), proceed: make(chan struct{})}
				s := newShop(t, patientOptions, g, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
				s.client.Timeout = time.Minute // keeps clients from repeating their requests
				keys := effort.Of(50)
				var buying sync.WaitGroup
				for n := range keys {
					buying.Go(func() { s.buyOnce(strconv.Itoa(n)) })
				}
				for range keys {
					<-g.arrivedKeys
				}
				row.forgetClaims(t, client)
				for n := range keys * (runs - 1) {
					buying.Go(func() { s.payUntilAnswered(strconv.Itoa(n), s.servers) })
				}
				for range keys * (runs - 1) {
					<-g.arrivedKeys
				}
				close(g.proceed)
				buying.Wait()

				found := s.auditSales(t, loss{affectedBefore: time.Now()}, false)
				require.Equal(t, keys*(runs-1), found.repeatedKeys)
				require.Zero(t, found.lostAnswers)
				restored, overtaken := s.outcomeCount(idempotency.OutcomeRestored), s.outcomeCount(idempotency.OutcomeClaimLost)
				require.EqualValues(t, keys*(2-runs), restored)
				require.EqualValues(t, keys*(runs-1), overtaken)
				effort.Count(t, "answers restored", restored)
				effort.Count(t, "owners overtaken", overtaken)
				found.reportCounts(t)
			})
		}
	}
}

// countRecords returns the number of records in Redis.
func countRecords(t *testing.T, client *redis.Client) int {
	keys, err := client.Keys(t.Context(), "idempotency:*").Result()
	require.NoError(t, err)
	return len(keys)
}

// readInfo returns the value of name in a section of INFO.
func readInfo(t *testing.T, client *redis.Client, section, name string) string {
	t.Helper()
	for line := range strings.Lines(client.Info(t.Context(), section).Val()) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("INFO does not tell %s", name)
	return ""
}
