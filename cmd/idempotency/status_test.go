package main_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// Scripts rely on the exit status: what each command ends with, in each state of a key.
func TestExitStatus(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.open(t)
		keyIn := func(id string) idempotency.Key {
			return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id}
		}
		complete(t, store, keyIn("completed"), answer)
		claim(t, store, keyIn("running"), attempt)
		abandon(t, b, keyIn("abandoned"))
		abandon(t, b, keyIn("uncertain"))
		require.NoError(t, claim(t, store, keyIn("released"), attempt).Release(t.Context(), time.Hour))
		complete(t, store, keyIn("omitted"), idempotency.Response{Status: 202, Omitted: true})
		long := strings.Repeat("long", 100)
		complete(t, store, keyIn(long).Bounded(), answer)
		digest := keyIn("completed").Digest()
		byDigest := []string{"--digest", hexOf(digest)}
		at := func(command, id string, more ...string) []string {
			return append(append([]string{command}, asking(keyIn(id))...), more...)
		}
		for _, test := range []struct {
			name   string
			args   []string
			status int
			says   string
		}{
			{"completed", at("inspect", "completed"), 0, "gets the stored answer, status 201"},
			{"in quotes, as the header may be", at("inspect", `"completed"`), 0, "gets the stored answer, status 201"},
			{"longer than stores keep", at("inspect", long), 0, "gets the stored answer, status 201"},
			{"running", at("inspect", "running"), 0, "Attempt 1 is running now"},
			{"abandoned", at("inspect", "abandoned"), 0, "Nobody knows what it has done"},
			{"released", at("inspect", "released"), 0, "without an answer that counts"},
			{"omitted", at("inspect", "omitted"), 0, "409 not-replayable"},
			{"by its digest", append([]string{"inspect"}, byDigest...), 0, "gets the stored answer, status 201"},
			{"by the other name", at("show", "completed"), 0, "gets the stored answer, status 201"},
			{"no record", at("inspect", "none"), 1, "There is no record of this key"},
			{"no record, its operation", at("inspect", "none"), 1, keyIn("none").OperationID().String()},
			{"no record as JSON", at("inspect", "none", "--json"), 1, `"found": false`},
			{"nothing to forget", at("forget", "none", "--yes"), 1, "There is no record of this key"},
			{"nothing to resolve", resolving(keyIn("none"), "--not-happened", "--yes"), 1, "There is no record of this key"},
			{"nothing to resolve as JSON", resolving(keyIn("none"), "--not-happened", "--yes", "--json"), 1, `"resolved": false`},
			{"nothing to forget as JSON", at("forget", "none", "--yes", "--json"), 1, `"forgotten": false`},
			{"list", []string{"list"}, 0, "completed"},
			{"list of a state", []string{"list", "--state", "released"}, 0, "released"},
			{"list of two states", []string{"list", "--state", "running,abandoned", "--json"}, 0, `"state": "abandoned"`},
			{"list of the largest", []string{"list", "--largest", "--limit", "1"}, 0, "1 of 7 records. The next page: --after "},
			{"stats", []string{"stats"}, 0, "Abandoned, the oldest first"},
			{"findings", []string{"check"}, 1, "unsafe"},
			{"findings as JSON", []string{"check", "--json"}, 1, `"severity": "unsafe"`},

			{"no key", []string{"inspect"}, 2, "which key?"},
			{"half of a key", []string{"inspect", "--user", "alice"}, 2, "which key?"},
			{"a key and a digest", at("inspect", "completed", byDigest...), 2, "want --digest, or --user"},
			{"no digest", []string{"inspect", "--digest", "12"}, 2, "64 hexadecimal digits"},
			{"nobody to ask", at("forget", "completed"), 2, "want --yes"},
			{"two faults", []string{"forget"}, 2, "which key? want --user, --endpoint and --key, or --digest; standard input"},
			{"no state", []string{"list", "--state", "gone"}, 2, "must be one of"},
			{"no limit", []string{"list", "--limit", "0"}, 2, "--limit must be positive"},
			{"no cursor", []string{"list", "--after", "x"}, 2, "--after: want the cursor of the page before"},
			{"nobody to ask to resolve", resolving(keyIn("uncertain"), "--not-happened"), 2, "want --yes"},
			{"all of a resolution", []string{"resolve"}, 2, "has it happened? want --happened or --not-happened; want --reason; " +
				"which key? want --user, --endpoint and --key, or --digest; standard input is not a terminal"},
			{"both ways", resolving(keyIn("uncertain"), "--yes", "--happened", "--not-happened", "--tombstone", "--header", "a", "--body", "-",
				"--ttl=-1s"), 2,
				"has it happened? want --happened or --not-happened; --status, --header, --body and --tombstone go with --happened; " +
					"--happened: want --status; --tombstone: want neither --header nor --body; --ttl must be positive; " +
					"--header \"a\": want 'Name: value'"},
			{"an answer of what has not happened", resolving(keyIn("uncertain"), "--yes", "--not-happened", "--status", "201"), 2,
				"go with --happened"},
			{"no answer", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "99", "--header", "Connection: x",
				"--body", "/none"), 2, "--body: open /none: no such file"},
			{"an answer that cannot be sent", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "99"), 2, "status 99"},
			{"work without HTTP", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "0"), 2,
				"status 0 is not between 200 and 999"},
			{"a tombstone without a status", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "0", "--tombstone"), 2,
				"status 0 is not between 200 and 999"},
			{"a body of no content", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "204", "--body", "go.mod"), 2,
				"the response has a body, but status 204 allows none"},
			{"a field that cannot be sent", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "200",
				"--header", "Connection: x"), 2, `field "Connection"`},
			{"a field with a line end", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "200",
				"--header", "X-A: 1\nX-B: 2"), 2, "a control character"},
			{"a field with a space", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "200",
				"--header", "X A: 1"), 2, "want 'Name: value'"},
			{"a large body", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "200", "--body", "/dev/zero"), 2,
				"--body: more than 1048576 bytes"},
			{"a question beside the body", resolving(keyIn("uncertain"), "--happened", "--status", "200", "--body", "-"), 2,
				"--body - reads standard input"},
			{"a long reason", resolving(keyIn("uncertain"), "--yes", "--not-happened", "--operator", long), 2, "more than 255"},
			{"no time", []string{"stats", "--timeout", "0s"}, 2, "--timeout must be positive"},
			{"no command", nil, 2, "expected one of"},
			{"unknown command", []string{"delete"}, 2, "unexpected argument delete"},
			{"unknown flag", []string{"list", "--all"}, 2, "unknown flag --all"},
			{"password of Redis", []string{"list", "--store", "redis://:pw@localhost"}, 2, "--store has a password"},
			{"password of PostgreSQL", []string{"list", "--store", "postgres://localhost?password=pw"}, 2, "has a password"},
			{"unknown store", []string{"list", "--store", "oracle://localhost"}, 2, "want redis://"},

			{"running, to be resolved", resolving(keyIn("running"), "--yes", "--not-happened"), 4, "not resolved: Attempt 1 is running"},
			{"completed, to be resolved", resolving(keyIn("completed"), "--yes", "--not-happened"), 4,
				"not resolved: The operation was completed"},
			{"released, to be resolved", resolving(keyIn("released"), "--yes", "--not-happened"), 4,
				"not resolved: Attempt 1 has ended"},
			{"resolved", resolving(keyIn("uncertain"), "--yes", "--happened", "--status", "201", "--json"), 0, `"resolved": true`},
			{"resolved already", resolving(keyIn("uncertain"), "--yes", "--not-happened"), 4, "not resolved: The operation was completed"},

			{"running, to be forgotten", at("forget", "running", "--yes"), 4, "not forgotten: Attempt 1 is running"},
			{"forgotten", at("forget", "completed", "--yes"), 0, "A SECOND TIME"},
			{"forgotten as JSON", at("forget", "abandoned", "--yes", "--json"), 0, `"forgotten": true`},
			{"forgotten already", at("forget", "completed", "--yes"), 1, "There is no record"},
			{"forgotten, released", at("forget", "released", "--yes"), 0, "executed in any case, but for the same request only"},
		} {
			got := b.try(t, test.args...)
			require.Equal(t, test.status, got.status, "%s: %s%s", test.name, got.stdout, got.stderr)
			require.Contains(t, strings.Join(strings.Fields(got.stdout+got.stderr), " "), test.says, test.name)
			require.LessOrEqual(t, strings.Count(got.stderr, "\n"), 1, "%s: %s", test.name, got.stderr)
		}
		got := b.try(t, "list", "--state", "completed", "--user", "nobody", "--json")
		if b.kind == "redis" {
			require.Equal(t, 2, got.status, "a store that does not keep users")
		} else {
			require.Equal(t, 1, got.status)
			var listing struct{ Entries []any }
			require.NoError(t, json.Unmarshal([]byte(got.stdout), &listing))
			require.NotNil(t, listing.Entries)
		}
	})
}

// await calls is until it returns true. It does so in the goroutine of the test, which a failed require within is ends.
func await(t testing.TB, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "waited for %v", patience)
	}
}

// A store that cannot be asked has a status of its own: nobody knows whether there is a record.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://127.0.0.1:1", "postgres://nobody@127.0.0.1:1/none", "mysql://nobody@127.0.0.1:1/none",
		"dynamodb://none?region=eu-central-1&endpoint=http://127.0.0.1:1",
	} {
		for _, args := range [][]string{
			with("inspect"), with("forget", "--yes"), resolving(keyOfAlice, "--not-happened", "--yes"), {"list"}, {"stats"}, {"check"},
		} {
			got := try(t, awsVariables, append(args, "--store", url, "--timeout", "2s")...)
			require.Equal(t, 3, got.status, "%s %v: %s%s", url, args, got.stdout, got.stderr)
			require.Contains(t, got.stderr, "refused")
			require.Equal(t, 1, strings.Count(got.stderr, "\n"), got.stderr)
		}
	}
}

// A server that says nothing does not hold the program for longer than the bound.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	address := silent(t)
	for _, url := range []string{
		"redis://" + address, "postgres://nobody@" + address + "/none?sslmode=disable", "mysql://nobody@" + address + "/none",
		"dynamodb://none?region=eu-central-1&endpoint=http://" + address,
	} {
		for _, args := range [][]string{with("inspect"), {"check"}} {
			got := try(t, awsVariables, append(args, "--store", url, "--timeout", "200ms")...)
			require.Equal(t, 3, got.status, "%s %v: %s%s", url, args, got.stdout, got.stderr)
		}
	}
}

// A sealed answer is told from others. What is in the clear is shown.
func TestSealed(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		sealed, err := seal.New(b.open(t), seal.Options{
			Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
		})
		require.NoError(t, err)
		complete(t, sealed, keyOfAlice, answer)
		got := b.try(t, with("inspect", "--body")...)
		require.Zero(t, got.status, got.stderr)
		require.Contains(t, got.stdout, "The answer is sealed")
		require.Contains(t, got.stdout, "201 Created")
		require.NotContains(t, got.stdout, "charged")
		require.NotContains(t, got.stdout, "sealed/1")
		got = b.try(t, with("inspect", "--json")...)
		require.Contains(t, got.stdout, `"sealed": true`)
		require.NotContains(t, got.stdout, `"header"`)

		imitation := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "imitation"}
		complete(t, b.open(t), imitation, idempotency.Response{Status: 201, Body: []byte("sealed/1 1\n")})
		got = b.try(t, append([]string{"inspect", "--body"}, asking(imitation)...)...)
		require.NotContains(t, got.stdout, "The answer is sealed")
		require.Contains(t, got.stdout, "sealed/1 1")
	})
}

// Steps are shown by name and size, and nobody sees their results. To forget them is to run them again.
func TestSteps(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		own := claim(t, b.open(t), keyOfAlice, attempt).(idempotency.Checkpointer)
		for name, data := range map[string]string{
			"reserve": `{"stock":"hidden"}`, "charge?": "hidden", "ship?": "hidden", "ship": `"hidden"`,
			idempotency.RecordLost: "",
		} {
			_, err := own.Checkpoint(t.Context(), name, []byte(data))
			require.NoError(t, err)
		}
		require.NotContains(t, b.try(t, with("inspect")...).stdout, "not repeated", "the attempt is running")
		require.NoError(t, own.Release(t.Context(), time.Hour))

		text := b.try(t, with("inspect", "--body")...)
		require.Zero(t, text.status, text.stderr)
		require.Regexp(t, `(?m)^  steps +the store has lost the record once, so further steps may have begun\n`+
			` +charge: begun, its outcome is not known\n`+
			` +reserve: done, 18 bytes\n +ship: done, 8 bytes$`, text.stdout)
		require.Contains(t, strings.Join(strings.Fields(text.stdout), " "), "Steps that are done are not repeated.")
		document := b.try(t, with("inspect", "--body", "--json")...)
		var got struct {
			Entry struct{ Steps []map[string]any }
		}
		require.NoError(t, json.Unmarshal([]byte(document.stdout), &got))
		require.Equal(t, []map[string]any{
			{"name": "?lost?", "size": 0.0}, {"name": "charge?", "size": 6.0}, {"name": "reserve", "size": 18.0},
			{"name": "ship", "size": 8.0}, {"name": "ship?", "size": 6.0},
		}, got.Entry.Steps)
		listed := b.try(t, "list", "--json")
		require.NotContains(t, listed.stdout, "steps")
		for _, said := range []result{text, document, listed} {
			require.NotContains(t, said.stdout+said.stderr, "hidden")
		}
		forgotten := b.try(t, with("forget", "--yes")...)
		require.Contains(t, strings.Join(strings.Fields(forgotten.stdout), " "), "what they have done happens A SECOND TIME")
	})
}

// What cannot be read is neither absent nor refused: it is shown as far as it is known, and can be forgotten.
func TestDamage(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		complete(t, b.open(t), keyOfAlice, answer)
		b.damage(t)
		got := b.try(t, with("inspect")...)
		require.Equal(t, 3, got.status, got.stdout+got.stderr)
		require.Contains(t, got.stdout, "The record of this key cannot be read")
		got = b.try(t, with("inspect", "--json")...)
		require.Equal(t, 3, got.status)
		require.Contains(t, got.stdout, `"damage": `)
		got = b.try(t, resolving(keyOfAlice, "--not-happened", "--yes")...)
		require.Equal(t, 3, got.status, got.stdout+got.stderr)
		require.Contains(t, got.stderr, "not resolved: The record of this key cannot be read")
		got = b.try(t, with("forget", "--yes")...)
		require.Equal(t, 0, got.status, got.stdout+got.stderr)
		require.Equal(t, 1, b.try(t, with("inspect")...).status)
	})
}

// Of what is no record at all, nobody can tell whether somebody runs it.
func TestGarbage(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	defer client.Close()
	name := "idempotency:{" + hexOf(keyOfAlice.Digest()) + "}"
	require.NoError(t, client.Set(t.Context(), name, "garbage", 0).Err())
	env := []string{"REDIS_URL=redis://:" + servertest.RedisPassword() + "@" + server.Addr()}
	got := try(t, env, with("inspect")...)
	require.Equal(t, 3, got.status)
	require.Contains(t, got.stdout, "The record of this key cannot be read")
	got = try(t, env, with("forget", "--yes")...)
	require.Equal(t, 3, got.status, got.stdout)
	require.Contains(t, got.stderr, "can be removed by hand")
	require.EqualValues(t, 1, client.Exists(t.Context(), name).Val())
	require.Contains(t, try(t, env, "stats").stdout, "Records that cannot be read: 1.")
	require.Equal(t, 3, try(t, env, "list").status, "it may be one that was asked for")
}
