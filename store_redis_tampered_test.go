package idempotency_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// recordStates make of a completed record one in another state.
var recordStates = map[string]func(record string) string{
	"done":     func(record string) string { return record },
	"running":  func(record string) string { return headOf(record, " running ") },
	"lapsed":   func(record string) string { return word("lease", "lease=1")(headOf(record, " running ")) },
	"released": func(record string) string { return headOf(record, " released ") },
}

func headOf(record, state string) string {
	head, _, _ := strings.Cut(record, "\n")
	return strings.Replace(head, " done ", state, 1) + "\n"
}

// executeOnce carries an operation out, and returns the name of its record and the record.
func executeOnce(t *testing.T, client redis.Cmdable, svc *testservice.Service, prefix, key, body string) (name, record string) {
	t.Helper()
	before := testservice.RedisKeys(t, client, prefix)
	require.Equal(t, http.StatusCreated, svc.Call(key, body).Status)
	for _, name := range testservice.RedisKeys(t, client, prefix) {
		if !strings.Contains(fmt.Sprint(before), name) {
			return name, client.Get(t.Context(), name).Val()
		}
	}
	require.Fail(t, "no record")
	return "", ""
}

// requireLeftAlone sends a request that finds a record that is not its own, or is none: the handler does not run.
func requireLeftAlone(t *testing.T, client redis.Cmdable, svc *testservice.Service, name, key, body string) {
	t.Helper()
	runs, before := svc.Runs.Load(), redisContent(t, client, name)
	for range 2 {
		testservice.RequireProblem(t, svc.Call(key, body), http.StatusServiceUnavailable, "store-unavailable")
		require.ErrorIs(t, svc.Journal.Last(t).Err, idempotency.ErrRecordInvalid)
	}
	require.Equal(t, runs, svc.Runs.Load())
	require.Equal(t, before, redisContent(t, client, name))
}

// A record under the name of another one answers nobody, and is not claimed.
func TestRedisRecordOfAnotherKey(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for size, body := range map[string]string{"small": "body", "large": testservice.LargeBody} {
			for state, as := range recordStates {
				t.Run(size+" "+state, func(t *testing.T) {
					prefix := fmt.Sprintf("%x:", t.Name())
					store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
					svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
					theirs, record := executeOnce(t, client, svc, prefix, "theirs", body)
					own, _ := executeOnce(t, client, svc, prefix, "own", body)
					require.NoError(t, client.Set(t.Context(), theirs, as(record), redis.KeepTTL).Err())
					require.EqualValues(t, 1, client.Copy(t.Context(), theirs, own, 0, true).Val())

					requireLeftAlone(t, client, svc, own, "own", body)
				})
			}
		}
	})
}

// Nor does the owner of a claim write over it.
func TestRedisClaimFindsRecordOfAnotherKey(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		for state, as := range recordStates {
			t.Run(state, func(t *testing.T) {
				prefix := fmt.Sprintf("%x:", t.Name())
				store := idempotency.NewRedisStore(client, idempotency.RedisOptions{Prefix: prefix})
				testservice.MustComplete(t, store, testservice.NumberedKey(1), testservice.BodyOf(1))
				theirs := testservice.RedisKeys(t, client, prefix)[0]
				record := client.Get(t.Context(), theirs).Val()
				require.NoError(t, client.Del(t.Context(), theirs).Err())
				claim := testservice.MustClaim(t, store, testservice.NumberedKey(2), testservice.AttemptFor(time.Hour))
				own := testservice.RedisKeys(t, client, prefix)[0]
				require.NoError(t, client.Set(t.Context(), own, as(record), time.Hour).Err())
				before := redisContent(t, client, own)

				require.ErrorIs(t, claim.Extend(t.Context(), time.Minute), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Complete(t.Context(), testservice.BodyOf(2), time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Complete(t.Context(), large(), time.Hour), idempotency.ErrClaimLost)
				require.ErrorIs(t, claim.Release(t.Context(), time.Hour), idempotency.ErrClaimLost)
				require.Equal(t, before, redisContent(t, client, own))
				require.Equal(t, []string{own}, testservice.RedisKeys(t, client, prefix))
			})
		}
	})
}

// word replaces a word of a head by another one.
func word(name, with string) func(string) string {
	return func(record string) string {
		start := strings.Index(record, name+"=")
		end := start + strings.IndexAny(record[start:], " \n")
		return record[:start] + with + record[end:]
	}
}

// beforeLine puts something at the end of a head.
func beforeLine(text string) func(string) string {
	return func(record string) string { return strings.Replace(record, "\n", text+"\n", 1) }
}

var (
	many9s = strings.Repeat("9", 25)
	digits = strings.Repeat("0123456789abcdef", 4)
)

// malformed is what no script writes into a head, in whatever state the record is.
var malformed = map[string]func(record string) string{
	"attempt 0":                  word("attempt", "attempt=0"),
	"attempt 00":                 word("attempt", "attempt=00"),
	"attempt of 11 digits":       word("attempt", "attempt=00000000001"),
	"lease with zeros before it": word("lease", "lease=00000000000000"),
	"ttl with zeros before it":   word("ttl", "ttl=00000000000000"),
	"ttl of 14 digits":           word("ttl", "ttl=10000000000000"),
	"ttl of 25 digits":           word("ttl", "ttl="+many9s),
	"ttl -1":                     word("ttl", "ttl=-1"),
	"ttl 1e3":                    word("ttl", "ttl=1e3"),
	"no ttl":                     word("ttl", "ttl="),
	"created at zeros and 1":     word("created", "created=00000000000001"),
	"attempt -1":                 word("attempt", "attempt=-1"),
	"attempt +1":                 word("attempt", "attempt=+1"),
	"attempt 1.5":                word("attempt", "attempt=1.5"),
	"attempt 1e3":                word("attempt", "attempt=1e3"),
	"attempt 0x1":                word("attempt", "attempt=0x1"),
	"no attempt":                 word("attempt", "attempt="),
	"attempt beyond 2^31":        word("attempt", "attempt=2147483648"),
	"attempt beyond 2^32":        word("attempt", "attempt=4294967297"),
	"attempt beyond 2^53":        word("attempt", "attempt=9007199254740993"),
	"attempt of 2^63":            word("attempt", "attempt=9223372036854775808"),
	"attempt of 25 digits":       word("attempt", "attempt="+many9s),
	"attempt twice":              word("attempt", "attempt=1 attempt=1"),
	"lease of 14 digits":         word("lease", "lease=10000000000000"),
	"lease of 25 digits":         word("lease", "lease="+many9s),
	"lease -1":                   word("lease", "lease=-1"),
	"lease +1":                   word("lease", "lease=+1"),
	"lease 1e3":                  word("lease", "lease=1e3"),
	"no lease":                   word("lease", "lease="),
	"created at 14 digits":       word("created", "created=10000000000000"),
	"created at 25 digits":       word("created", "created="+many9s),
	"created at -1":              word("created", "created=-1"),
	"created at 1e3":             word("created", "created=1e3"),
	"created never":              word("created", "created="),
	"created now":                word("created", "created=now"),
	"token too short":            word("token", "token=0"),
	"token too long":             word("token", "token="+digits),
	"token a pattern":            word("token", "token=%x+"),
	"token in upper case":        word("token", "token="+strings.ToUpper(digits[:32])),
	"no key":                     func(record string) string { return word("key", "")(strings.Replace(record, " key", "key", 1)) },
	"key too short":              word("key", "key=0"),
	"key too long":               word("key", "key="+digits),
	"key of nobody":              word("key", "key="+digits[:32]),
	"fingerprint too short":      word("fingerprint", "fingerprint=0"),
	"another word":               beforeLine(" more=1"),
	"a space at the end":         beforeLine(" "),
	"CR LF":                      beforeLine("\r"),
	"a zero byte":                beforeLine("\x00"),
	"magic in upper case":        func(record string) string { return strings.Replace(record, "idempotency", "Idempotency", 1) },
}

// behindHead is what may follow the head of a completed record only.
var behindHead = map[string]string{"a digit": "0", "digits": "1763712000000", "a line": "line\n", "a response": goldenResponse}

// A head that no script has written is no reason to run the handler, and no script makes it worse.
func TestRedisMalformedHead(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		svc := testservice.Setup{Store: store, Opts: idempotency.Options{FailOpen: true}}.Guard(t, testservice.Echo)
		name, record := executeOnce(t, client, svc, "", "key", "body")
		refused := func(t *testing.T, value string) {
			require.NotEqual(t, record, value)
			require.NoError(t, client.Set(t.Context(), name, value, time.Hour).Err())
			requireLeftAlone(t, client, svc, name, "key", "body")
		}
		for state, as := range recordStates {
			for fault, damage := range malformed {
				t.Run(state+", "+fault, func(t *testing.T) { refused(t, damage(as(record))) })
			}
			for what, rest := range behindHead {
				if state != "done" {
					t.Run(state+", "+what+" behind it", func(t *testing.T) { refused(t, as(record)+rest) })
				}
			}
		}
	})
}

// The number of the last attempt is as good as any other, but has no successor.
func TestRedisLastAttempt(t *testing.T) {
	onRealAndMiniredis(t, func(t *testing.T, client *redis.Client) {
		store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
		svc := testservice.Setup{Store: store}.Guard(t, attemptNumber)
		require.Equal(t, "attempt 1", svc.Call("key", "").Body)
		name := testservice.RedisKeys(t, client, "")[0]
		record := recordStates["released"](client.Get(t.Context(), name).Val())
		require.NoError(t, client.Set(t.Context(), name, word("attempt", "attempt=2147483646")(record), time.Hour).Err())

		require.Equal(t, "attempt 2147483647", svc.Call("key", "").Body)
		require.True(t, svc.Call("key", "").Replayed())
		released := recordStates["released"](client.Get(t.Context(), name).Val())
		require.NoError(t, client.Set(t.Context(), name, released, time.Hour).Err())
		testservice.RequireProblem(t, svc.Call("key", ""), http.StatusConflict, "outcome-unknown")
		require.Equal(t, released, client.Get(t.Context(), name).Val())
	})
}
