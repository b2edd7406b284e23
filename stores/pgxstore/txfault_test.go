package pgxstore_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/internal/aborttest"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// The request or the reply of each message of a step is lost or late. The row and the answer are there once.
func TestLostMessagesOfSteps(t *testing.T) {
	t.Parallel()
	const created, failed, either = http.StatusCreated, http.StatusServiceUnavailable, 0
	for _, test := range []struct {
		statement  string
		fault      servertest.Fault
		wantStatus int // status of the request with the fault
	}{
		{"idempotency: enter step", servertest.LoseRequest, created},
		{"idempotency: enter step", servertest.LoseReply, created},
		{"idempotency: enter step", servertest.CutRequest, created},
		{"idempotency: enter step", servertest.CutReply, created},
		{"idempotency: enter step", servertest.HoldReply, created},
		{"idempotency: enter step", servertest.HoldRequest, created},
		{"INSERT INTO", servertest.LoseRequest, failed},
		{"INSERT INTO", servertest.LoseReply, failed},
		{"idempotency: keep step", servertest.LoseRequest, failed},
		{"idempotency: keep step", servertest.LoseReply, created},
		{"idempotency: keep step", servertest.CutRequest, either}, // the end of the message is missing
		{"idempotency: keep step", servertest.CutReply, created},
		{"idempotency: keep step", servertest.HoldReply, created},
		{"idempotency: keep step", servertest.HoldRequest, failed},
	} {
		for kind, do := range storeTxSteps {
			for name, level := range map[string]pgx.TxIsoLevel{"read committed": "", "repeatable read": pgx.RepeatableRead} {
				t.Run(test.statement+"/"+string(test.fault)+"/"+kind+"/"+name, func(t *testing.T) {
					t.Parallel()
					direct := newPool(t, serverURL(t))
					pool, proxy := newProxiedPool(t, withoutPreparing)
					// A silent session keeps the record locked until the server ends the session.
					opts := newTable(t, direct, pgxstore.Options{Isolation: level, IdleTimeout: 500 * time.Millisecond})
					b := &bookings{rows: newRows(t, direct, opts), pool: pool, do: do}
					h := newMiddleware(t, pgxstore.New(pool, opts), idempotency.Options{StoreTimeout: 4 * time.Second}, b.ServeHTTP)
					key := uuid.NewString()

					proxy.Inject(servertest.Rule{Fault: test.fault, Pattern: test.statement})
					w := post(h, key)
					require.Equal(t, 1, proxy.Strikes())
					if test.wantStatus != either {
						require.Equal(t, test.wantStatus, w.Code, "%v", b.lastError)
					}
					require.Equal(t, map[int]int{created: 1, failed: 0}[w.Code], b.rows.countRows(t, key), "the answer is true")
					proxy.Release()                     // the held message comes late
					require.Eventually(t, func() bool { // the server may still execute the held message
						w = post(h, key)
						return w.Code == created
					}, 20*time.Second, 10*time.Millisecond)
					require.Equal(t, key, w.Body.String())
					require.Equal(t, 1, b.rows.countRows(t, key))
				})
			}
		}
	}
}

// A handler charges in a step, and inserts a row with an answer in another step. After all faults, each key has one
// charge, one row and one answer, and the answer is that of the row.
func TestStepsSurviveAborts(t *testing.T) {
	t.Parallel()
	for name, level := range isolationLevels {
		for kind, do := range mergeMaps(storeTxSteps, handlerTxSteps(level.opts.Isolation)) {
			if _, own := storeTxSteps[kind]; !own && (name != "read committed" && name != "repeatable read") {
				continue
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				a := newAborts(t, do, level.opts, level.bouncer, level.session)
				a.requireExactlyOnce(a.Run(16))
			})
		}
	}
}

// aborts is a service behind a proxy that breaks connections. Its handlers panic, give up, lose their sessions and
// their clients, and stand still.
type aborts struct {
	aborttest.Service
	direct   *pgxpool.Pool
	pool     *pgxpool.Pool
	rows     *rowTable // the names are "key answer"
	provider *killtest.Provider
	do       stepFunc
}

func newAborts(t *testing.T, do stepFunc, opts pgxstore.Options, bouncer bool, session pgx.TxIsoLevel) *aborts {
	a := &aborts{direct: newPool(t, serverURL(t)), do: do, provider: killtest.NewProvider(t)}
	db, _ := startSharedServer()
	target := db.Addr()
	if bouncer {
		target = servertest.PgBouncer(t, db).Addr()
	}
	a.T, a.Proxy = t, servertest.NewProxy(t, target)
	a.Patterns = []string{
		"idempotency: claim", "idempotency: enter step", "idempotency: keep step", "idempotency: settle step", "commit",
		"idempotency: complete", "idempotency: release", "idempotency: extend", "INSERT", "",
	}
	a.pool = newPool(t, db.URLAt(a.Proxy.Addr()), withoutPreparing, func(c *pgxpool.Config) {
		c.MaxConns = 6
		if session != "" {
			c.ConnConfig.RuntimeParams["default_transaction_isolation"] = string(session)
		}
	})
	opts.IdleTimeout = 700 * time.Millisecond
	opts = newTable(t, a.direct, opts)
	a.rows = newRows(t, a.direct, opts)
	a.Handler = newMiddleware(t, pgxstore.New(a.pool, opts), idempotency.Options{
		Lease: 1500 * time.Millisecond, StoreTimeout: time.Second, CancelWithClient: true,
	}, a.ServeHTTP)
	return a
}

func (a *aborts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	op, _ := idempotency.FromContext(ctx)
	answer, err := "", errors.Join(a.interrupt(ctx, nil), a.provider.Charge(ctx), a.interrupt(ctx, nil))
	if err == nil {
		answer, err = a.do(ctx, a.pool, "book", func(tx stepTx) (string, error) {
			answer := uuid.NewString()
			err := errors.Join(a.interrupt(ctx, &tx), tx.exec(ctx, a.rows.insertStatement, op.Key.ID+" "+answer),
				a.interrupt(ctx, &tx))
			return answer, err
		})
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, answer)
}

func (a *aborts) interrupt(ctx context.Context, tx *stepTx) error {
	var kill func()
	if tx != nil {
		kill = func() { _ = tx.exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())") }
	}
	return a.Interrupt(30, 1200*time.Millisecond, kill)
}

func (a *aborts) requireExactlyOnce(answers map[string]string) {
	a.Helper()
	written := queryColumn[string](a, a.direct, "SELECT name FROM "+a.rows.name)
	var want, keys []string
	for key, answer := range answers {
		keys, want = append(keys, key), append(want, key+" "+answer)
	}
	slices.Sort(written)
	slices.Sort(want)
	require.Equal(a, want, written)
	require.NoError(a, a.provider.Explain(keys...))
	a.RequireReplays()
	a.Logf("%s", a.provider)
}

// If a step stops waiting while its commit is on its way, the store does not take the commit for failed.
func TestCommitOfStepInFlight(t *testing.T) {
	t.Parallel()
	pool, proxy := newProxiedPool(t, withoutPreparing)
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	rows := newRows(t, direct, opts)
	_, claim := claimNewKey(t, pgxstore.New(pool, opts))
	var tx pgx.Tx
	outcome := make(chan error, 1)
	go func() {
		_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
			Name: "book", Var: &tx, Timeout: 6 * time.Second, Run: func() ([]byte, error) { // the commit gets half of this time
				_, err := tx.Exec(t.Context(), rows.insertStatement, "row")
				proxy.Inject(servertest.Rule{Fault: servertest.HoldRequest, Pattern: "keep step"})
				return nil, err
			},
		})
		outcome <- err
	}()
	require.Eventually(t, func() bool { return proxy.Strikes() == 1 }, 20*time.Second, time.Millisecond)
	sent := proxy.Flights()
	require.Eventually(t, func() bool { return proxy.Flights() > sent+6 }, 20*time.Second, time.Millisecond,
		"the store asks on another connection")
	proxy.Release()
	require.NoError(t, <-outcome)
	require.Equal(t, 1, rows.countRows(t, "row"))
}

// A failover to an asynchronous standby may lose the rows of a step together with the result of the step. The answer
// of the attempt is not stored then, because the rows are not there, and a retry writes the rows again.
func TestFailoverLosesRowsOfSteps(t *testing.T) {
	t.Parallel()
	const lostStep = "UPDATE %s SET step_names = NULL, step_results = NULL"
	const lostRecord = "DELETE FROM %s"
	for name, test := range map[string]struct {
		do            string
		lossStatement string // changes the record as the failover does, at the end of the attempt
		lossAttempt   int    // attempt of the failover
		answerIsKept  bool   // the answer is still stored
		hasLaterStep  bool   // another step follows the failover
		isRestored    bool   // a renewal restores the record before the attempt ends
		replyIsLost   bool   // the reply to this renewal is lost
	}{
		"step":                               {"DoTx", lostStep, 1, false, false, false, false},
		"step before another one":            {"DoTx", lostStep, 1, false, true, false, false},
		"record":                             {"DoTx", lostRecord, 1, false, false, false, false},
		"step, package sql":                  {"DoSQLTx", lostStep, 1, false, false, false, false},
		"step of an earlier attempt":         {"DoTx", lostStep, 2, false, false, false, false},
		"record after an earlier attempt":    {"DoTx", lostRecord, 2, false, false, false, false},
		"record, transaction of the handler": {"DoInTx", lostRecord, 1, false, false, false, false},
		"record that a renewal restores":     {"DoTx", lostRecord, 1, false, false, true, false},
		"record that a renewal restores, transaction of the handler": {"DoInTx", lostRecord, 1, false, false, true,
			false},
		"record that a renewal without a reply restores, transaction of the handler": {"DoInTx", lostRecord, 1, false, false, true,
			true},
		"step of an earlier attempt, transaction of the handler": {"DoInTx", lostStep, 2, false, false, false,
			false},
		"nothing":                          {"DoTx", "SELECT FROM %s", 1, true, false, false, false},
		"nothing after an earlier attempt": {"DoTx", "SELECT FROM %s", 2, true, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, direct := t.Context(), newPool(t, serverURL(t))
			pool, proxy := newProxiedPool(t, withoutPreparing)
			opts := newTable(t, direct, pgxstore.Options{})
			rows := newRows(t, direct, opts)
			do := mergeMaps(storeTxSteps, handlerTxSteps(""))[test.do]
			runner, err := idempotency.NewRunner(pgxstore.New(pool, opts),
				idempotency.RunnerOptions{Lease: 3 * time.Second, StoreTimeout: 3 * time.Second})
			require.NoError(t, err)
			runs, key := 0, keyOf(uuid.NewString())
			book := func() error {
				_, _, err := runner.Do(ctx, key, nil, func(ctx context.Context) (idempotency.Response, error) {
					runs++
					name, err := do(ctx, pool, "book", func(tx stepTx) (string, error) {
						return key.ID, tx.exec(ctx, rows.insertStatement, key.ID)
					})
					if err != nil {
						return idempotency.Response{}, err
					}
					if runs < test.lossAttempt {
						return idempotency.Response{}, errors.New("not yet")
					}
					if runs == test.lossAttempt {
						if test.replyIsLost {
							proxy.Inject(servertest.Rule{Fault: servertest.LoseReply, Pattern: "idempotency: restore", Times: 1000})
						}
						execStatement(t, direct, fmt.Sprintf(test.lossStatement, tableName(opts)))
						if !test.answerIsKept {
							execStatement(t, direct, "DELETE FROM "+rows.name)
						}
						if test.isRestored {
							require.Eventually(t, func() bool {
								return queryValue[int](t, direct, "SELECT count(*) FROM "+
									tableName(opts)) == 1
							},
								20*time.Second, 10*time.Millisecond)
						}
						if test.hasLaterStep {
							_, err = do(ctx, pool, "ship", func(stepTx) (string, error) { return "shipped", nil })
						}
					}
					return idempotency.Response{Status: 201, Body: []byte(name)}, err
				})
				return err
			}
			for range test.lossAttempt - 1 {
				require.ErrorContains(t, book(), "not yet")
			}
			err = book()
			if test.answerIsKept {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, idempotency.ErrClaimLost)
				steps := queryColumn[string](t, direct, "SELECT unnest(step_names) FROM "+tableName(opts))
				require.Equal(t, test.lossStatement == lostStep || test.isRestored, slices.Contains(steps, idempotency.RecordLost))
			}
			require.Eventually(t, func() bool { return book() == nil }, 20*time.Second, 10*time.Millisecond)
			require.Equal(t, 1, rows.countRows(t, key.ID))
			require.NoError(t, book(), "a replay")
			require.Equal(t, map[bool]int{true: test.lossAttempt, false: test.lossAttempt + 1}[test.answerIsKept], runs)
		})
	}
}

// An attempt whose key was taken over has lost its claim, but no rows.
func TestOvertakenStepHasLostNoRows(t *testing.T) {
	t.Parallel()
	direct := newPool(t, serverURL(t))
	opts := newTable(t, direct, pgxstore.Options{})
	runner, err := idempotency.NewRunner(pgxstore.New(direct, opts), idempotency.RunnerOptions{})
	require.NoError(t, err)
	_, _, err = runner.Do(t.Context(), keyOf("key"), nil, func(ctx context.Context) (idempotency.Response, error) {
		_, err := pgxstore.DoTx(ctx, "book", func(pgx.Tx) (int, error) { return 1, nil })
		execStatement(t, direct, "UPDATE "+tableName(opts)+" SET token = gen_random_uuid()")
		return idempotency.Response{Status: 201}, err
	})
	require.ErrorIs(t, err, idempotency.ErrClaimLost)
	require.NotErrorIs(t, err, sqlstore.ErrRowsLost)
}
