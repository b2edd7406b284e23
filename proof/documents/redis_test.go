package documents_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// The ACL user of the documentation has enough rights for the store and for Check, and cannot read other keys.
func TestRedisPageGivesEnoughRights(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	admin := redisClient(t, &redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	shown := regexp.MustCompile("\nACL SETUSER service .*").FindString(readFile(t, "docs/redis.md"))
	require.NotEmpty(t, shown)
	var words []any
	for word := range strings.FieldsSeq(shown + " >secret") {
		words = append(words, word)
	}
	require.NoError(t, admin.Do(t.Context(), words...).Err())

	limited := redisClient(t, &redis.Options{
		Addr: server.Addr(), Username: "service", Password: "secret", DisableIdentity: true,
	})
	require.ErrorContains(t, limited.Get(t.Context(), "another").Err(), "NOPERM")
	newStore := func(*testing.T) idempotency.Store { // hides the Inspector methods, because inspection is for support
		return struct{ idempotency.Store }{idempotency.NewRedisStore(limited, idempotency.RedisOptions{})}
	}
	idempotencytest.Run(t, newStore)
	idempotencytest.RunSteps(t, newStore)
	err := idempotency.NewRedisStore(limited, idempotency.RedisOptions{}).Check(t.Context())
	var unsafe *idempotency.UnsafeSetting
	require.ErrorAs(t, err, &unsafe, "this server has no append-only file")
	require.NotContains(t, err.Error(), "NOPERM")
	denied, err := admin.ACLLog(t.Context(), 100).Result()
	require.NoError(t, err)
	for _, entry := range denied {
		require.Equal(t, "another", entry.Object)
	}
}

func redisClient(t *testing.T, opts *redis.Options) *redis.Client {
	client := redis.NewClient(opts)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// Check reports nothing for a server with the settings of the documentation.
func TestRedisPageGivesSafeSettings(t *testing.T) {
	t.Parallel()
	_, settings, found := strings.Cut(readFile(t, "docs/redis.md"), "```\n# Twice the room of all records")
	require.True(t, found)
	settings, _, _ = strings.Cut("#"+settings, "```") // the end of the comment, and the settings
	var args []string
	for line := range strings.Lines(settings) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), " "); found && name[0] != '#' {
			args = append(args, "--"+name, value)
		}
	}
	require.Len(t, args, 12)
	server := servertest.Redis(t, args...)
	client := redisClient(t, &redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	require.NoError(t, idempotency.NewRedisStore(client, idempotency.RedisOptions{}).Check(t.Context()))
}

// The page's figures of failovers were measured: each figure is in the full table of results.
func TestRedisPageHasMeasuredFailovers(t *testing.T) {
	t.Parallel()
	measured := readFile(t, "proof/guarantees/servers/README.md")
	figures := regexp.MustCompile(`\| ([\d,]+) of ([\d,]+) `).FindAllStringSubmatch(readFile(t, "docs/redis.md"), -1)
	require.Len(t, figures, 6)
	for _, figure := range figures {
		require.Regexp(t, `\| `+figure[1]+`( \+ \d+)? of `+figure[2]+` \|`, measured)
	}
}
