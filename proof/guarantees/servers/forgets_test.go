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

// gate is a ledger that keeps handlers from going on before they are let through.
type gate struct {
	memory
	arrived chan string
	open    chan struct{}
}

func (g *gate) add(ctx context.Context, key string) error {
	g.arrived <- key
	<-g.open
	return g.memory.add(ctx, key)
}

// A Redis that forgets claims while their handlers run costs no answer. If nobody has asked meanwhile, the owner makes the
// record again, and says so. If somebody has, both run, and both get the answer of the second, which has the claim.
func TestRedisForgetsClaims(t *testing.T) {
	t.Parallel()
	evict := func(t *testing.T, client *redis.Client) {
		used, err := strconv.Atoi(info(t, client, "memory", "used_memory"))
		require.NoError(t, err)
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(used+4<<20)).Err())
		filler := strings.Repeat("x", 64<<10)
		for n := 0; claims(t, client) > 0; n++ {
			require.Less(t, n, 100_000, "nothing is evicted")
			require.NoError(t, client.Set(t.Context(), "filler "+strconv.Itoa(n), filler, 48*time.Hour).Err())
		}
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	}
	for name, row := range map[string]struct {
		args   []string
		forget func(t *testing.T, client *redis.Client)
	}{
		"FLUSHALL":     {nil, func(t *testing.T, client *redis.Client) { require.NoError(t, client.FlushAll(t.Context()).Err()) }},
		"allkeys-lru":  {[]string{"--maxmemory-policy", "allkeys-lru"}, evict},
		"volatile-ttl": {[]string{"--maxmemory-policy", "volatile-ttl"}, evict},
	} {
		for asked, runs := range map[string]int{"by nobody": 1, "meanwhile": 2} {
			t.Run(name+", asked "+asked, func(t *testing.T) {
				t.Parallel()
				server := servertest.Redis(t, row.args...)
				client := newClient(t, server)
				g := &gate{arrived: make(chan string, 1000), open: make(chan struct{})}
				s := newShop(t, patient, g, twoStores(func() redis.Cmdable { return newClient(t, server) })...)
				s.client.Timeout = time.Minute // nobody asks again before
				keys := effort.Of(50)
				var buying sync.WaitGroup
				for n := range keys {
					buying.Go(func() { s.buy(strconv.Itoa(n)) })
				}
				for range keys {
					<-g.arrived
				}
				row.forget(t, client)
				for n := range keys * (runs - 1) {
					buying.Go(func() { s.pay(strconv.Itoa(n), s.servers) })
				}
				for range keys * (runs - 1) {
					<-g.arrived
				}
				close(g.open)
				buying.Wait()

				found := s.audit(t, loss{until: time.Now()}, false)
				require.Equal(t, keys*(runs-1), found.twice)
				require.Zero(t, found.lost)
				restored, overtaken := s.outcome(idempotency.OutcomeRestored), s.outcome(idempotency.OutcomeClaimLost)
				require.EqualValues(t, keys*(2-runs), restored)
				require.EqualValues(t, keys*(runs-1), overtaken)
				effort.Count(t, "answers restored", restored)
				effort.Count(t, "owners overtaken", overtaken)
				found.report(t)
			})
		}
	}
}

// claims returns how many records there are.
func claims(t *testing.T, client *redis.Client) int {
	keys, err := client.Keys(t.Context(), "idempotency:*").Result()
	require.NoError(t, err)
	return len(keys)
}

// info returns a value that INFO tells.
func info(t *testing.T, client *redis.Client, section, name string) string {
	t.Helper()
	for line := range strings.Lines(client.Info(t.Context(), section).Val()) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("INFO does not tell %s", name)
	return ""
}
