package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/internal/aborttest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// A handler calls a provider in a step, and inserts a row with an answer in another step. After all faults, each key
// has one row and one answer, and the answer is that of the row.
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
				a.requireExactlyOnce(a.Run(20))
			})
		}
	}
}

// aborts is a service behind a proxy that breaks connections. Its handlers panic, give up, lose their sessions and
// their clients, and stand still.
type aborts struct {
	aborttest.Service
	directPool, proxiedPool *sql.DB
	rowsTable               string
	isJoined                bool
}

func newAborts(t *testing.T, isJoined bool, settings ...string) *aborts {
	a := &aborts{directPool: openPool(t, sharedServer(t).DSN()), isJoined: isJoined}
	a.T, a.Proxy = t, servertest.NewProxy(t, sharedServer(t).Addr())
	a.Patterns = []string{
		"SET autocommit = 0, @idem", "LAST_INSERT_ID", "SAVEPOINT", "INSERT INTO", "CONCAT(COALESCE", "autocommit = 1",
		"SELECT token, COALESCE(lease", "COMMIT", "ROLLBACK", "",
	}
	// Statements of the handler have no other deadline, and Commit of package database/sql takes no context.
	a.proxiedPool = openPool(t, sharedServer(t).DSNAt(a.Proxy.Addr()), append(settings, "readTimeout=3s")...)
	a.proxiedPool.SetMaxOpenConns(6)
	opts := newOptions()
	opts.IdleTimeout = time.Second
	require.NoError(t, mysqlstore.Migrate(t.Context(), a.directPool, opts))
	a.rowsTable = opts.Table + "_rows"
	execStatement(t, a.directPool, "CREATE TABLE "+a.rowsTable+" (name CHAR(36), answer CHAR(36)) ENGINE = InnoDB")
	a.Handler = newMiddleware(t, mysqlstore.New(a.proxiedPool, opts), idempotency.Options{
		Lease: 1500 * time.Millisecond, StoreTimeout: time.Second, CancelWithClient: true,
	}, a.ServeHTTP)
	return a
}

func (a *aborts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	receipt, err := step.Do(ctx, "charge", func(context.Context) (string, error) { return uuid.NewString(), a.interrupt(nil) })
	answer := ""
	if err == nil {
		answer, err = a.bookRow(ctx, r.Header.Get("Idempotency-Key"))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, receipt, " ", answer)
}

func (a *aborts) bookRow(ctx context.Context, key string) (string, error) {
	write := func(tx *sql.Tx) (string, error) {
		answer := uuid.NewString()
		_, err := tx.ExecContext(ctx, "INSERT INTO "+a.rowsTable+" VALUES ('"+key+"', '"+answer+"')")
		return answer, errors.Join(err, a.interrupt(tx))
	}
	if !a.isJoined {
		return mysqlstore.DoTx(ctx, "book", write)
	}
	tx, err := a.proxiedPool.BeginTx(ctx, nil)
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

func (a *aborts) interrupt(tx *sql.Tx) error {
	var kill func()
	if tx != nil {
		kill = func() { _, _ = tx.Exec("KILL CONNECTION_ID()") }
	}
	return a.Interrupt(20, 1500*time.Millisecond, kill)
}

func (a *aborts) requireExactlyOnce(answers map[string]string) {
	a.Helper()
	rows, err := a.directPool.Query("SELECT name, answer FROM " + a.rowsTable)
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
	require.Len(a, written, len(answers))
	for key, answer := range written {
		require.Contains(a, answers, key)
		require.Equal(a, answer, answers[key][len(uuid.Nil.String())+1:])
	}
	a.RequireReplays()
}
