package pgxstore_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// digestParts returns the parts of a key in the form of a table with digests.
func digestParts(key idempotency.Key) (parts []string) {
	for _, part := range []string{key.User, key.Endpoint, key.ID} {
		sum := sha256.Sum256([]byte(part))
		parts = append(parts, hex.EncodeToString(sum[:]))
	}
	return parts
}

func withDigests(opts pgxstore.Options, digests bool) pgxstore.Options {
	opts.DigestNames = digests
	return opts
}

func TestDigestsInsteadOfNames(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	for form, days := range map[string]int{"plain": 0, "partitions": 1} {
		opts := newTable(t, pool, pgxstore.Options{DigestNames: true, PartitionDays: days})
		store := pgxstore.New(pool, opts)
		t.Run(form, func(t *testing.T) {
			key := completeNewKey(t, store)
			record, _, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.Equal(t, answer, *record.Response)

			operation := key.OperationID()
			require.Equal(t, digestParts(key), queryValue[[]string](t, pool,
				"SELECT array[user_id, endpoint, key] FROM "+tableName(opts)+" WHERE operation = $1", operation))
			row := dumpRecord(t, pool, opts, key)
			for _, part := range []string{key.User, key.Endpoint, key.ID} {
				require.NotContains(t, row, part)
			}

			forgeRecord(t, pool, opts, key, "user_id = encode(sha256('mallory'), 'hex')")
			_, _, err = store.Begin(ctx, key, attempt)
			require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
		})
	}
}

// The setting changes while records exist, or while two versions of a service share the records with different
// settings. Each store reads all records, and writes its own form.
func TestChangeToDigestsAndBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	testEachForm(t, func(t *testing.T, pool *pgxpool.Pool, opts pgxstore.Options, store *pgxstore.Store) {
		for name, digested := range map[string]bool{"to digests": true, "back": false} {
			t.Run(name, func(t *testing.T) {
				former, now := withDigests(opts, !digested), withDigests(opts, digested)
				reopened := func(o pgxstore.Options) idempotency.Store { return pgxstore.New(pool, o) }
				again := attempt
				again.TakeOver = true
				inForm := func(key idempotency.Key, digested bool) {
					want := []string{key.User, key.Endpoint, key.ID}
					if digested {
						want = digestParts(key)
					}
					operation := key.OperationID()
					require.Equal(t, want, queryValue[[]string](t, pool,
						"SELECT array[user_id, endpoint, key] FROM "+tableName(opts)+" WHERE operation = $1", operation))
				}

				key := completeNewKey(t, reopened(former))
				inForm(key, !digested)
				record, _, err := reopened(now).Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.Equal(t, answer, *record.Response)

				key, _ = claimNewKey(t, pgxstore.New(pool, former))
				record, claim, err := reopened(now).Begin(ctx, key, attempt)
				require.NoError(t, err)
				require.Nil(t, claim)
				require.NotZero(t, record.LeaseLeft, "it is running")

				for _, state := range []string{"lease_until = NULL", "lease_until = now() - interval '1 second'"} {
					key, _ = claimNewKey(t, pgxstore.New(pool, former))
					forgeRecord(t, pool, opts, key, state)
					record, claim, err = reopened(now).Begin(ctx, key, again)
					require.NoError(t, err)
					require.NotNil(t, claim)
					require.Equal(t, 2, record.Attempt)
					require.NoError(t, claim.Complete(ctx, answer, time.Hour))
					inForm(key, digested)

					key, _ = claimNewKey(t, pgxstore.New(pool, former))
					forgeRecord(t, pool, opts, key, state)
					forgeRecord(t, pool, opts, key, "endpoint = encode(sha256(endpoint::bytea), 'hex')")
					if !digested {
						forgeRecord(t, pool, opts, key, "endpoint = 'POST /payments'")
					}
					_, _, err = reopened(now).Begin(ctx, key, again)
					require.ErrorIs(t, err, idempotency.ErrRecordInvalid, "one name has another form than the others")
					require.Nil(t, testservice.InDoubt(err))
				}
			})
		}
	})
}

// Names that cannot be stored literally, and a user whose name looks like a digest, are not confused with others.
func TestDigestsOfUnusualNames(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	opts := newTable(t, pool, pgxstore.Options{})
	for _, first := range []bool{true, false} {
		store := pgxstore.New(pool, withDigests(opts, first))
		for _, user := range []string{"", "a\x00b", "a\xffb", "\u00fc", digestParts(keyOf("1"))[0]} {
			key := idempotency.Key{User: user, Endpoint: "POST /payments", ID: uuid.NewString()}
			_, claim, err := store.Begin(ctx, key, attempt)
			require.NoError(t, err)
			require.NotNil(t, claim)
			require.NoError(t, claim.Complete(ctx, answer, time.Hour))
			record, _, err := pgxstore.New(pool, withDigests(opts, !first)).Begin(ctx, key, attempt)
			require.NoError(t, err, user)
			require.NotNil(t, record.Response)
		}
	}
	key := completeNewKey(t, pgxstore.New(pool, opts))
	called := key
	called.User = digestParts(key)[0]
	operation, former := called.OperationID(), key.OperationID()
	execStatement(t, pool, "UPDATE "+tableName(opts)+" SET operation = $1 WHERE operation = $2", operation, former)
	store := pgxstore.New(pool, opts)
	_, _, err := store.Begin(ctx, called, attempt)
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
}

// The test shows which data of a request a server logs if it logs every statement, and which settings prevent this.
func TestLogOfTheServer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t, serverURL(t))
	names := []string{"alice@example.org", "/accounts/4711/payments", "key-8c1d"}
	key := idempotency.Key{User: names[0], Endpoint: "POST " + names[1], ID: names[2]}
	response := idempotency.Response{Status: 201, Header: "Location: /payments/815\n", Body: []byte("card 4242")}
	content := []string{"/payments/815", hex.EncodeToString(response.Body)}

	// logged returns the server's log of an operation, its next attempt, and a replay.
	logged := func(t *testing.T, opts pgxstore.Options, changes ...func(*pgxpool.Config)) string {
		opts = newTable(t, pool, opts)
		var log sessionLog
		own := newPool(t, serverURL(t), append(changes, log.attachTo)...)
		store := pgxstore.New(own, opts)
		_, claim, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.NoError(t, claim.Release(ctx, idempotency.Release{TTL: time.Hour}))
		_, claim, err = store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.NoError(t, claim.Complete(ctx, response, time.Hour))
		record, _, err := store.Begin(ctx, key, attempt)
		require.NoError(t, err)
		require.Equal(t, response, *record.Response)
		execStatement(t, own, "DELETE FROM "+tableName(opts))
		text := log.readText()
		for _, statement := range []string{"claim", "release", "complete"} {
			require.Contains(t, text, "idempotency: "+statement)
		}
		return text
	}
	shows := func(log string, texts []string) (shown []string) {
		for _, text := range texts {
			if strings.Contains(log, text) {
				shown = append(shown, text)
			}
		}
		return shown
	}

	t.Run("by default", func(t *testing.T) {
		log := logged(t, pgxstore.Options{})
		require.Equal(t, names, shows(log, names))
		require.Equal(t, content, shows(log, content))
	})
	t.Run("digests", func(t *testing.T) {
		log := logged(t, pgxstore.Options{DigestNames: true})
		require.Empty(t, shows(log, names))
		require.Equal(t, content, shows(log, content), "answers are logged as they are")
	})
	role := strings.ToLower(strings.ReplaceAll(newTable(t, pool, pgxstore.Options{}).Table, " ", "_"))
	execStatement(t, pool, "CREATE ROLE "+role+" LOGIN SUPERUSER PASSWORD '"+pool.Config().ConnConfig.Password+"'")
	execStatement(t, pool, "ALTER ROLE "+role+" SET log_parameter_max_length = 0")
	asRole := func(c *pgxpool.Config) { c.ConnConfig.User = role }
	t.Run("log_parameter_max_length", func(t *testing.T) {
		log := logged(t, pgxstore.Options{}, asRole)
		require.Empty(t, shows(log, append(names, content...)))
	})
	t.Run("log_parameter_max_length and the simple protocol", func(t *testing.T) {
		log := logged(t, pgxstore.Options{}, asRole, func(c *pgxpool.Config) {
			c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		})
		require.Equal(t, names, shows(log, names), "the parameters are a part of the statement")
	})
}

// sessionLog is the server's log of the sessions of a pool. The server sends the sessions a copy.
type sessionLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *sessionLog) attachTo(c *pgxpool.Config) {
	c.ConnConfig.RuntimeParams["log_min_duration_statement"] = "0"
	c.ConnConfig.RuntimeParams["client_min_messages"] = "log"
	c.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, n.Message, n.Detail, n.Hint, n.Where, n.InternalQuery)
	}
}

func (l *sessionLog) readText() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
