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

// The exit status of each command in each state of a key, because scripts rely on the exit status.
func TestExitStatus(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		store := b.openStore(t)
		keyIn := func(id string) idempotency.Key {
			return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: id}
		}
		completeRecord(t, store, keyIn("completed"), answer)
		claimKey(t, store, keyIn("running"), claimRequest)
		abandonAttempt(t, b, keyIn("abandoned"))
		abandonAttempt(t, b, keyIn("uncertain"))
		require.NoError(t, claimKey(t, store, keyIn("released"), claimRequest).Release(t.Context(), idempotency.Release{TTL: time.Hour}))
		for id, end := range map[string]idempotency.Release{
			"failed": {TTL: time.Hour, Reason: idempotency.EndNotStorable}, "panicked": {Abandoned: true, Reason: idempotency.EndPanicked},
		} {
			require.NoError(t, claimKey(t, store, keyIn(id), claimRequest).Release(t.Context(), end))
		}
		completeRecord(t, store, keyIn("omitted"), idempotency.Response{Status: 202, Omitted: true})
		long := strings.Repeat("long", 100)
		completeRecord(t, store, keyIn(long).Bounded(), answer)
		operation := keyIn("completed").OperationID().String()
		byOperation := []string{"--operation", operation}
		at := func(command, id string, more ...string) []string {
			return append(append([]string{command}, keyFlags(keyIn(id))...), more...)
		}
		for _, test := range []struct {
			name       string
			args       []string
			wantStatus int
			wantOutput string
		}{
			{"completed", at("inspect", "completed"), 0, "gets the stored answer, status 201"},
			{"key in quotes, as in the header", at("inspect", `"completed"`), 0, "gets the stored answer, status 201"},
			{"key longer than the limit of stores", at("inspect", long), 0, "gets the stored answer, status 201"},
			{"running", at("inspect", "running"), 0, "Attempt 1 is running now"},
			{"abandoned", at("inspect", "abandoned"), 0, "Nobody knows what it has done"},
			{"released", at("inspect", "released"), 0, "without an answer that counts"},
			{"failed", at("inspect", "failed"), 0, "that counts: the service failed, so its answer is not stored."},
			{"panicked", at("inspect", "panicked"), 0, "Attempt 1 was abandoned: the handler panicked or exited."},
			{"panicked, as JSON", at("inspect", "panicked", "--json"), 0, `"ended": "panicked"`},
			{"omitted", at("inspect", "omitted"), 0, "409 not-replayable"},
			{"by operation", append([]string{"inspect"}, byOperation...), 0, "gets the stored answer, status 201"},
			{"by the instance of a refusal", []string{"inspect", "--operation", "urn:uuid:" + operation}, 0, "gets the stored answer"},
			{"by the command show", at("show", "completed"), 0, "gets the stored answer, status 201"},
			{"no record", at("inspect", "none"), 1, "There is no record of this key"},
			{"no record, operation ID", at("inspect", "none"), 1, keyIn("none").OperationID().String()},
			{"no record as JSON", at("inspect", "none", "--json"), 1, `"found": false`},
			{"nothing to forget", at("forget", "none", "--yes"), 1, "There is no record of this key"},
			{"nothing to resolve", resolveCommand(keyIn("none"), "--not-happened", "--yes"), 1, "There is no record of this key"},
			{"nothing to resolve as JSON", resolveCommand(keyIn("none"), "--not-happened", "--yes", "--json"), 1, `"resolved": false`},
			{"nothing to forget as JSON", at("forget", "none", "--yes", "--json"), 1, `"forgotten": false`},
			{"list", []string{"list"}, 0, "completed"},
			{"list of a state", []string{"list", "--state", "released"}, 0, "released"},
			{"list of two states", []string{"list", "--state", "running,abandoned", "--json"}, 0, `"state": "abandoned"`},
			{"list of the largest", []string{"list", "--order", "largest", "--limit", "1"}, 0, "1 of 9 records. The next page: --after "},
			{"stats", []string{"stats"}, 0, "Abandoned, the oldest first"},
			{"findings", []string{"check"}, 1, "unsafe"},
			{"findings as JSON", []string{"check", "--json"}, 1, `"severity": "unsafe"`},

			{"no key", []string{"inspect"}, 2, "which operation?"},
			{"half of a key", []string{"forget", "--user", "alice", "--yes"}, 2, "which operation?"},
			{"a key and an operation", at("inspect", "completed", byOperation...), 2, "want --operation, or --user"},
			{"invalid operation", []string{"inspect", "--operation", "12"}, 2, "--operation: want a UUID"},
			{"forget without a terminal", at("forget", "completed"), 2, "want --yes"},
			{"two faults", []string{"forget"}, 2, "which operation? want --user, --endpoint and --key, or --operation; standard input"},
			{"unknown state", []string{"list", "--state", "gone"}, 2, "must be one of"},
			{"limit of zero", []string{"list", "--limit", "0"}, 2, "--limit must be positive"},
			{"invalid cursor", []string{"list", "--after", "x"}, 2, "--after: want the cursor of the page before"},
			{"resolve without a terminal", resolveCommand(keyIn("uncertain"), "--not-happened"), 2, "want --yes"},
			{"resolve without flags", []string{"resolve"}, 2, "has it happened? want --happened or --not-happened; want --reason; " +
				"which operation? want --user, --endpoint and --key, or --operation; standard input is not a terminal"},
			{"happened and not happened", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--not-happened", "--tombstone",
				"--header", "a", "--body", "-",
				"--ttl=-1s"), 2,
				"has it happened? want --happened or --not-happened; --status, --header, --body and --tombstone go with --happened; " +
					"--happened: want --status; --tombstone: want neither --header nor --body; --ttl must be positive; " +
					"--header \"a\": want 'Name: value'"},
			{"not happened with an answer", resolveCommand(keyIn("uncertain"), "--yes", "--not-happened", "--status", "201"), 2,
				"go with --happened"},
			{"missing body file", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "99", "--header", "Connection: x",
				"--body", "/none"), 2, "--body: open /none: no such file"},
			{"an answer that cannot be sent", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "99"), 2, "status 99"},
			{"work without HTTP", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "0"), 2,
				"status 0 is not between 200 and 999"},
			{"a tombstone without a status", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "0", "--tombstone"), 2,
				"status 0 is not between 200 and 999"},
			{"a body of no content", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "204", "--body", "go.mod"), 2,
				"the response has a body, but status 204 allows none"},
			{"a field that cannot be sent", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "200",
				"--header", "Connection: x"), 2, `field "Connection"`},
			{"a field with a line end", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "200",
				"--header", "X-A: 1\nX-B: 2"), 2, "a control character"},
			{"a field with a space", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "200",
				"--header", "X A: 1"), 2, "want 'Name: value'"},
			{"a large body", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "200", "--body", "/dev/zero"), 2,
				"--body: more than 1048576 bytes"},
			{"a question beside the body", resolveCommand(keyIn("uncertain"), "--happened", "--status", "200", "--body", "-"), 2,
				"--body - reads standard input"},
			{"a long reason", resolveCommand(keyIn("uncertain"), "--yes", "--not-happened", "--operator", long), 2, "more than 255"},
			{"timeout of zero", []string{"stats", "--timeout", "0s"}, 2, "--timeout must be positive"},
			{"no command", nil, 2, "expected one of"},
			{"unknown command", []string{"delete"}, 2, "unexpected argument delete"},
			{"unknown flag", []string{"list", "--all"}, 2, "unknown flag --all"},
			{"password of Redis", []string{"list", "--store", "redis://:pw@localhost"}, 2, "--store has a password"},
			{"password of PostgreSQL", []string{"list", "--store", "postgres://localhost?password=pw"}, 2, "has a password"},
			{"unknown store", []string{"list", "--store", "oracle://localhost"}, 2, "want redis://"},

			{"running, to be resolved", resolveCommand(keyIn("running"), "--yes", "--not-happened"), 4,
				"not resolved: Attempt 1 is running"},
			{"completed, to be resolved", resolveCommand(keyIn("completed"), "--yes", "--not-happened"), 4,
				"not resolved: The operation was completed"},
			{"released, to be resolved", resolveCommand(keyIn("released"), "--yes", "--not-happened"), 4,
				"not resolved: Attempt 1 has ended"},
			{"resolved", resolveCommand(keyIn("uncertain"), "--yes", "--happened", "--status", "201", "--json"), 0, `"resolved": true`},
			{"resolved already", resolveCommand(keyIn("uncertain"), "--yes", "--not-happened"), 4,
				"not resolved: The operation was completed"},

			{"running, to be forgotten", at("forget", "running", "--yes"), 4, "not forgotten: Attempt 1 is running"},
			{"forgotten", at("forget", "completed", "--yes"), 0, "A SECOND TIME"},
			{"forgotten as JSON", at("forget", "abandoned", "--yes", "--json"), 0, `"forgotten": true`},
			{"forgotten already", at("forget", "completed", "--yes"), 1, "There is no record"},
			{"forgotten, released", at("forget", "released", "--yes"), 0, "executed in any case, but for the same request only"},
		} {
			got := b.run(t, test.args...)
			require.Equal(t, test.wantStatus, got.status, "%s: %s%s", test.name, got.stdout, got.stderr)
			require.Contains(t, strings.Join(strings.Fields(got.stdout+got.stderr), " "), test.wantOutput, test.name)
			require.LessOrEqual(t, strings.Count(got.stderr, "\n"), 1, "%s: %s", test.name, got.stderr)
		}
		got := b.run(t, "list", "--state", "completed", "--user", "nobody", "--json")
		require.Equal(t, 1, got.status)
		var listing struct{ Entries []any }
		require.NoError(t, json.Unmarshal([]byte(got.stdout), &listing))
		require.NotNil(t, listing.Entries)
	})
}

// waitUntil calls hasHappened repeatedly until the result is true. The calls are in the goroutine of the test, so that a
// failed require in hasHappened ends the test.
func waitUntil(t testing.TB, hasHappened func() bool) {
	t.Helper()
	for end := time.Now().Add(waitLimit); !hasHappened(); time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "waited for %v", waitLimit)
	}
}

// If the store is not reachable, the exit status is 3 and not 1, because the record may exist.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://127.0.0.1:1", "postgres://nobody@127.0.0.1:1/none", "mysql://nobody@127.0.0.1:1/none",
		"dynamodb://none?region=eu-central-1&endpoint=http://127.0.0.1:1",
	} {
		for _, args := range [][]string{
			commandForAlice("inspect"), commandForAlice("forget", "--yes"),
			resolveCommand(keyOfAlice, "--not-happened", "--yes"), {"list"}, {"stats"}, {"check"},
		} {
			got := runProcess(t, awsVariables, append(args, "--store", url, "--timeout", "2s")...)
			require.Equal(t, 3, got.status, "%s %v: %s%s", url, args, got.stdout, got.stderr)
			require.Contains(t, got.stderr, "refused")
			require.Equal(t, 1, strings.Count(got.stderr, "\n"), got.stderr)
		}
	}
}

// With a server that sends nothing, the program ends after --timeout.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	address := startSilentServer(t)
	for _, url := range []string{
		"redis://" + address, "postgres://nobody@" + address + "/none?sslmode=disable", "mysql://nobody@" + address + "/none",
		"dynamodb://none?region=eu-central-1&endpoint=http://" + address,
	} {
		for _, args := range [][]string{commandForAlice("inspect"), {"check"}} {
			got := runProcess(t, awsVariables, append(args, "--store", url, "--timeout", "200ms")...)
			require.Equal(t, 3, got.status, "%s %v: %s%s", url, args, got.stdout, got.stderr)
		}
	}
}

// The program recognizes sealed answers, and shows their unencrypted parts.
func TestSealed(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		sealed, err := seal.New(b.openStore(t), seal.Options{
			Keys: []seal.Key{{ID: "1", Secret: make([]byte, 32)}},
		})
		require.NoError(t, err)
		completeRecord(t, sealed, keyOfAlice, answer)
		got := b.run(t, commandForAlice("inspect", "--body")...)
		require.Zero(t, got.status, got.stderr)
		require.Contains(t, got.stdout, "The answer is sealed")
		require.Contains(t, got.stdout, "201 Created")
		require.NotContains(t, got.stdout, "charged")
		require.NotContains(t, got.stdout, "sealed/1")
		got = b.run(t, commandForAlice("inspect", "--json")...)
		require.Contains(t, got.stdout, `"sealed": true`)
		require.NotContains(t, got.stdout, `"header"`)

		imitation := idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "imitation"}
		completeRecord(t, b.openStore(t), imitation, idempotency.Response{Status: 201, Body: []byte("sealed/1 1\n")})
		got = b.run(t, append([]string{"inspect", "--body"}, keyFlags(imitation)...)...)
		require.NotContains(t, got.stdout, "The answer is sealed")
		require.Contains(t, got.stdout, "sealed/1 1")
	})
}

// The program shows the names and sizes of steps, and hides their results. After forget, the steps run again.
func TestSteps(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		own := claimKey(t, b.openStore(t), keyOfAlice, claimRequest).(idempotency.Checkpointer)
		for name, data := range map[string]string{
			"reserve": `{"stock":"hidden"}`, "charge?": "hidden", "ship?": "hidden", "ship": `"hidden"`,
			idempotency.RecordLost: "",
		} {
			_, err := own.Checkpoint(t.Context(), name, []byte(data))
			require.NoError(t, err)
		}
		require.NotContains(t, b.run(t, commandForAlice("inspect")...).stdout, "not repeated", "the attempt is running")
		require.NoError(t, own.Release(t.Context(), idempotency.Release{TTL: time.Hour}))

		text := b.run(t, commandForAlice("inspect", "--body")...)
		require.Zero(t, text.status, text.stderr)
		require.Regexp(t, `(?m)^  steps +the store has lost the record once, so further steps may have begun\n`+
			` +charge: begun, its outcome is not known\n`+
			` +reserve: done, 18 bytes\n +ship: done, 8 bytes$`, text.stdout)
		require.Contains(t, strings.Join(strings.Fields(text.stdout), " "), "Steps that are done are not repeated.")
		document := b.run(t, commandForAlice("inspect", "--body", "--json")...)
		var got struct {
			Entry struct{ Steps []map[string]any }
		}
		require.NoError(t, json.Unmarshal([]byte(document.stdout), &got))
		require.Equal(t, []map[string]any{
			{"name": "?lost?", "size": 0.0}, {"name": "charge?", "size": 6.0}, {"name": "reserve", "size": 18.0},
			{"name": "ship", "size": 8.0}, {"name": "ship?", "size": 6.0},
		}, got.Entry.Steps)
		listed := b.run(t, "list", "--json")
		require.NotContains(t, listed.stdout, "steps")
		for _, printed := range []result{text, document, listed} {
			require.NotContains(t, printed.stdout+printed.stderr, "hidden")
		}
		forgotten := b.run(t, commandForAlice("forget", "--yes")...)
		require.Contains(t, strings.Join(strings.Fields(forgotten.stdout), " "), "what they have done happens A SECOND TIME")
	})
}

// An unreadable record has the exit status 3. The program shows the readable parts, and can forget the record.
func TestDamage(t *testing.T) {
	t.Parallel()
	forEachBackend(t, func(t *testing.T, b backend) {
		completeRecord(t, b.openStore(t), keyOfAlice, answer)
		b.damageRecord(t)
		got := b.run(t, commandForAlice("inspect")...)
		require.Equal(t, 3, got.status, got.stdout+got.stderr)
		require.Contains(t, got.stdout, "The record of this key cannot be read")
		got = b.run(t, commandForAlice("inspect", "--json")...)
		require.Equal(t, 3, got.status)
		require.Contains(t, got.stdout, `"damage": `)
		got = b.run(t, resolveCommand(keyOfAlice, "--not-happened", "--yes")...)
		require.Equal(t, 3, got.status, got.stdout+got.stderr)
		require.Contains(t, got.stderr, "not resolved: The record of this key cannot be read")
		got = b.run(t, commandForAlice("forget", "--yes")...)
		require.Equal(t, 0, got.status, got.stdout+got.stderr)
		require.Equal(t, 1, b.run(t, commandForAlice("inspect")...).status)
	})
}

// The program does not forget a value that is no record, because an attempt may be running.
func TestGarbage(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: servertest.RedisPassword()})
	defer client.Close()
	name := "idempotency:{" + keyOfAlice.OperationID().String() + "}"
	require.NoError(t, client.Set(t.Context(), name, "garbage", 0).Err())
	env := []string{"REDIS_URL=redis://:" + servertest.RedisPassword() + "@" + server.Addr()}
	got := runProcess(t, env, commandForAlice("inspect")...)
	require.Equal(t, 3, got.status)
	require.Contains(t, got.stdout, "The record of this key cannot be read")
	got = runProcess(t, env, commandForAlice("forget", "--yes")...)
	require.Equal(t, 3, got.status, got.stdout)
	require.Contains(t, got.stderr, "can be removed by hand")
	require.EqualValues(t, 1, client.Exists(t.Context(), name).Val())
	require.Contains(t, runProcess(t, env, "stats").stdout, "Records that cannot be read: 1.")
	require.Equal(t, 3, runProcess(t, env, "list").status, "the unreadable record may belong to the list")
}
