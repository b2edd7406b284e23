package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// A handler calls a provider in a step, and books a row with its answer in another one. Whatever breaks, each key has one row and one
// answer, which is that of the row.
func TestStepsSurviveAborts(t *testing.T) {
	t.Parallel()
	for level, settings := range map[string][]string{
		"repeatable read": nil, "snapshot isolation": {"innodb_snapshot_isolation=1"},
		"read committed": {"tx_isolation=%27READ-COMMITTED%27"}, "serializable": {"tx_isolation=%27SERIALIZABLE%27"},
	} {
		for kind, isJoined := range map[string]bool{"DoTx": false, "DoInTx": true} {
			t.Run(level+"/"+kind, func(t *testing.T) {
				t.Parallel()
				a := newAborts(t, isJoined, settings...)
				stop := a.injectFaults()
				var crowd sync.WaitGroup
				for range 4 {
					crowd.Go(func() {
						for range 5 {
							a.bookUntilDone(uuid.NewString())
						}
					})
				}
				crowd.Wait()
				stop()
				a.requireExactlyOnce()
			})
		}
	}
}

// aborts is a service behind a proxy that breaks connections. Its handlers panic, give up, lose their sessions and their clients, and
// stand still.
type aborts struct {
	*testing.T
	direct, through *sql.DB
	proxy           *servertest.Proxy
	rows            string
	service         http.Handler
	isJoined        bool

	answers sync.Map     // by key
	trouble atomic.Int64 // handlers that were interrupted
}

func newAborts(t *testing.T, isJoined bool, settings ...string) *aborts {
	a := &aborts{T: t, direct: pool(t, server(t).DSN()), isJoined: isJoined, proxy: servertest.NewProxy(t, server(t).Addr())}
	// Statements of the handler have no other deadline, and Commit of package database/sql can have none.
	a.through = pool(t, server(t).DSNAt(a.proxy.Addr()), append(settings, "readTimeout=3s")...)
	a.through.SetMaxOpenConns(6)
	opts := newOptions()
	opts.IdleTimeout = time.Second
	require.NoError(t, mysqlstore.Migrate(t.Context(), a.direct, opts))
	a.rows = opts.Table + "_rows"
	execute(t, a.direct, "CREATE TABLE "+a.rows+" (name CHAR(36), answer CHAR(36)) ENGINE = InnoDB")
	a.service = newMiddleware(t, mysqlstore.New(a.through, opts), idempotency.Options{
		Lease: 1500 * time.Millisecond, StoreTimeout: time.Second, CancelWithClient: true,
	}, a.ServeHTTP)
	return a
}

func (a *aborts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	receipt, err := step.Do(ctx, "charge", func(context.Context) (string, error) { return uuid.NewString(), a.interrupt(nil) })
	answer := ""
	if err == nil {
		answer, err = a.book(ctx, r.Header.Get("Idempotency-Key"))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, receipt, " ", answer)
}

func (a *aborts) book(ctx context.Context, key string) (string, error) {
	write := func(tx *sql.Tx) (string, error) {
		answer := uuid.NewString()
		_, err := tx.ExecContext(ctx, "INSERT INTO "+a.rows+" VALUES ('"+key+"', '"+answer+"')")
		return answer, errors.Join(err, a.interrupt(tx))
	}
	if !a.isJoined {
		return mysqlstore.DoTx(ctx, "book", write)
	}
	tx, err := a.through.BeginTx(ctx, nil)
	if err != nil {
		return "", err
	}
	defer tx.Rollback() // does nothing after a commit
	answer, err := mysqlstore.DoInTx(ctx, tx, "book", func() (string, error) { return write(tx) })
	if err != nil {
		return "", err
	}
	return answer, tx.Commit()
}

// interrupt does what may happen to a handler, once in a while. Tx is nil outside of a transaction.
func (a *aborts) interrupt(tx *sql.Tx) error {
	what := rand.IntN(20)
	if what < 4 {
		a.trouble.Add(1)
	}
	switch what {
	case 0:
		panic(http.ErrAbortHandler)
	case 1:
		return errors.New("the handler gives up")
	case 2:
		if tx != nil {
			_, _ = tx.Exec("KILL CONNECTION_ID()")
		}
	case 3: // renewals go on, or the server ends the session
		time.Sleep(rand.N(1500 * time.Millisecond))
	}
	return nil
}

func (a *aborts) injectFaults() (stop func()) {
	faults := []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.CutRequest, servertest.CutReply, servertest.HoldReply,
		servertest.DelayRequest, servertest.LateRequest, servertest.DelayReply,
	}
	patterns := []string{
		"SET autocommit = 0, @idem", "LAST_INSERT_ID", "SAVEPOINT", "INSERT INTO", "CONCAT(COALESCE", "autocommit = 1",
		"SELECT token, COALESCE(lease", "COMMIT", "ROLLBACK", "",
	}
	ctx, cancel := context.WithCancel(a.Context())
	var injector sync.WaitGroup
	injector.Go(func() {
		for ctx.Err() == nil {
			a.proxy.Inject(servertest.Rule{
				Fault: faults[rand.IntN(len(faults))], Pattern: patterns[rand.IntN(len(patterns))], Skip: rand.IntN(3),
			})
			time.Sleep(rand.N(80 * time.Millisecond))
		}
		a.proxy.Inject(servertest.Rule{})
		a.proxy.Release()
	})
	return func() {
		cancel()
		injector.Wait()
	}
}

// bookUntilDone sends a request until it is answered.
func (a *aborts) bookUntilDone(key string) {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if w := a.tryToBook(key); w != nil && w.Code == http.StatusCreated {
			a.answers.Store(key, w.Body.String())
			return
		}
	}
	a.Errorf("%s was not answered", key)
}

// tryToBook sends a request whose client may leave. It returns nil if the handler has panicked.
func (a *aborts) tryToBook(key string) (w *httptest.ResponseRecorder) {
	defer func() {
		if recover() != nil {
			w = nil
		}
	}()
	ctx := a.Context()
	if rand.IntN(10) == 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, rand.N(30*time.Millisecond))
		defer cancel()
	}
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/payments", nil)
	r.Header.Set("Idempotency-Key", key)
	w = httptest.NewRecorder()
	a.service.ServeHTTP(w, r)
	return w
}

func (a *aborts) requireExactlyOnce() {
	a.Helper()
	rows, err := a.direct.Query("SELECT name, answer FROM " + a.rows)
	require.NoError(a, err)
	defer rows.Close()
	written := map[string]string{}
	for rows.Next() {
		var name, answer string
		require.NoError(a, rows.Scan(&name, &answer))
		require.NotContains(a, written, name, "a second row")
		written[name] = answer
	}
	require.NoError(a, rows.Err())
	require.Len(a, written, 20)
	for key, answer := range written {
		acknowledged, ok := a.answers.Load(key)
		require.True(a, ok)
		require.Equal(a, answer, acknowledged.(string)[len(uuid.Nil.String())+1:])
		eventually(a, "the replay", func() bool { // connections that were struck are still in the pool
			w := a.tryToBook(key)
			if w == nil || w.Code != http.StatusCreated {
				return false
			}
			require.Equal(a, acknowledged, w.Body.String())
			return w.Header().Get("Idempotent-Replayed") == "true"
		})
	}
	a.Logf("%d interruptions of handlers", a.trouble.Load())
}
