package mysqlstore_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/mysqlstore"
)

// A deadlock ends the transaction of one of two handlers. Nothing of what the victim does is committed, whether or
// not it takes notice; the other one goes on.
func TestDeadlockThatAHandlerIgnores(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusCreated, http.StatusConflict} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			victim, survivor := w.handle(t, "victim"), w.handle(t, "survivor")
			deadlock(t, w, victim, survivor)
			before := []string{"before"}
			err := victim.run("INSERT INTO " + w.effects + " (name) VALUES ('after')")
			require.ErrorContains(t, err, "the transaction has ended")
			require.ErrorIs(t, victim.answer(status), idempotency.ErrRolledBack)
			w.requireFree(t, "victim")
			w.requireEffects(t, 0, append(before, "after")...)

			name := survivor.effect(t)
			require.NoError(t, survivor.answer(http.StatusCreated))
			w.requireEffects(t, 1, name)
		})
	}
}

// What a victim sends on its connection after the deadlock, past the store, is not committed either.
func TestNothingIsCommittedBehindADeadlock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "multiStatements=true")
	execute(t, w.db, fmt.Sprintf(`CREATE PROCEDURE %s_swallow() BEGIN
		DECLARE CONTINUE HANDLER FOR 1213 BEGIN END;
		UPDATE %s SET balance = balance + 1 WHERE id = 1;
		INSERT INTO %s (name) VALUES ('after');
	END`, w.table, w.accounts, w.effects))
	victim, survivor := w.handle(t, "victim"), w.handle(t, "survivor")
	survivor.exec(t, "INSERT INTO "+w.effects+" (name) SELECT 'weight' FROM seq_1_to_100") // it is not the victim
	survivor.exec(t, "UPDATE "+w.accounts+" SET balance = balance + 1 WHERE id = 1")
	victim.exec(t, "UPDATE "+w.accounts+" SET balance = balance + 1 WHERE id = 2")
	ended := make(chan error)
	go func() { ended <- survivor.run("UPDATE " + w.accounts + " SET balance = balance + 1 WHERE id = 2") }()
	requireStuck(t, w.other(t), w.accounts)
	victim.exec(t, "CALL "+w.table+"_swallow()") // and knows of nothing
	require.ErrorIs(t, victim.answer(http.StatusCreated), idempotency.ErrRolledBack)
	require.NoError(t, <-ended)
	require.NoError(t, survivor.answer(http.StatusCreated))
	w.requireEffects(t, 0, "after")
	w.requireEffects(t, 100, "weight")
	w.requireFree(t, "victim")
}

// deadlock brings two handlers into a deadlock of which one is the victim.
func deadlock(t *testing.T, w *world, victim, survivor *handling) {
	t.Helper()
	update := "UPDATE " + w.accounts + " SET balance = balance + 1 WHERE id = ?"
	survivor.exec(t, "INSERT INTO "+w.effects+" (name) SELECT 'weight' FROM seq_1_to_100")
	survivor.exec(t, update, 1)
	victim.exec(t, "INSERT INTO "+w.effects+" (name) VALUES ('before')")
	victim.exec(t, update, 2)
	ended := make(chan error)
	go func() { ended <- survivor.run(update, 2) }()
	requireStuck(t, w.other(t), w.accounts)
	require.ErrorContains(t, victim.run(update, 1), "1213")
	require.NoError(t, <-ended)
}

// What a handler does in vain leads to an answer that is kept or not, depending on why.
func TestErrorsOfStatements(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	execute(t, w.db, "CREATE TABLE "+w.table+"_unique (id INT PRIMARY KEY) ENGINE = InnoDB")
	execute(t, w.db, "INSERT INTO "+w.table+"_unique VALUES (1)")
	locker, err := w.other(t).BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = locker.ExecContext(t.Context(), "INSERT INTO "+w.table+"_unique VALUES (2)")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Rollback()) })
	for name, test := range map[string]struct {
		statements []string
		status     int
		kept       bool
		effects    int
	}{
		"constraint, refusal": {[]string{"INSERT INTO {t} VALUES (1)"}, 409, true, 0},
		"constraint, success": {[]string{"INSERT INTO {t} VALUES (1)"}, 201, true, 1},
		"data, refusal":       {[]string{"INSERT INTO {t} VALUES ('x')"}, 422, true, 0},
		"syntax, success":     {[]string{"SELEKT"}, 201, true, 1},
		"lock, refusal":       {[]string{"SET innodb_lock_wait_timeout = 1", "INSERT INTO {t} VALUES (2)"}, 409, false, 0},
		"lock, success":       {[]string{"SET innodb_lock_wait_timeout = 1", "INSERT INTO {t} VALUES (2)"}, 201, true, 1},
		"no wait, refusal":    {[]string{"SELECT * FROM {t} WHERE id = 2 FOR UPDATE NOWAIT"}, 409, false, 0},
		"interrupted":         {[]string{"SET STATEMENT max_statement_time = 0.01 FOR SELECT SLEEP(3600)"}, 503, false, 0},
		"rolled back in SQL":  {[]string{"BEGIN NOT ATOMIC ROLLBACK; END"}, 201, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := w.handle(t, name)
			effect := h.effect(t)
			for _, statement := range test.statements {
				_ = h.run(strings.ReplaceAll(statement, "{t}", w.table+"_unique"))
			}
			err := h.answer(test.status)
			w.requireEffects(t, test.effects, effect)
			if !test.kept {
				require.ErrorIs(t, err, idempotency.ErrRolledBack)
				w.requireFree(t, name)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.status, requireStored(t, w.store, name).Status)
		})
	}
}

// With innodb_rollback_on_timeout, a wait for a lock that takes too long ends the transaction, and nothing tells so.
func TestRollbackOnTimeout(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "innodb_rollback_on_timeout=1", "innodb_lock_wait_timeout=1")
	w := newWorldAt(t, m.DSN(), newOptions())
	holder, h := w.handle(t, "holder"), w.handle(t, "key")
	holder.exec(t, "UPDATE "+w.accounts+" SET balance = 0")
	first := h.effect(t)
	require.ErrorContains(t, h.run("UPDATE "+w.accounts+" SET balance = 1"), "1205")
	second := h.effect(t)
	require.ErrorIs(t, h.answer(http.StatusCreated), idempotency.ErrRolledBack)
	require.NoError(t, holder.answer(http.StatusCreated))
	w.requireEffects(t, 0, first, second)
	w.requireFree(t, "key")
}

// implicit are statements that commit.
var implicit = []string{
	"# a\ncommit",
	"COMMIT", "BEGIN", "BEGIN WORK", "START TRANSACTION", "/* a */ commit", "-- a\nCOMMIT AND CHAIN", "SET autocommit = 1",
	"SET @a = 1, @@session.autocommit = ON", "CREATE TABLE {t}_x (id INT)", "CREATE OR REPLACE TABLE {t}_x (id INT)",
	"ALTER TABLE {t}_x ADD (n INT)", "TRUNCATE TABLE {t}_x", "TRUNCATE {t}_x", "RENAME TABLE {t}_x TO {t}_y",
	"CREATE INDEX i ON {t}_y (id)", "DROP INDEX i ON {t}_y", "ANALYZE TABLE {t}_y", "ANALYZE LOCAL TABLE {t}_y",
	"OPTIMIZE TABLE {t}_y", "CHECK TABLE {t}_y", "REPAIR TABLE {t}_y", "LOCK TABLES {t}_y READ",
	"CREATE VIEW {t}_v AS SELECT 1", "DROP VIEW {t}_v", "CREATE FUNCTION {t}_f() RETURNS INT RETURN 1",
	"DROP FUNCTION {t}_f", "CREATE USER {t}@localhost", "GRANT SELECT ON *.* TO {t}@localhost",
	"REVOKE SELECT ON *.* FROM {t}@localhost", "ALTER USER {t}@localhost IDENTIFIED BY 'a'", "DROP USER {t}@localhost",
	"FLUSH STATUS", "CREATE SEQUENCE {t}_s", "DROP SEQUENCE {t}_s", "DROP TABLE {t}_y",
	"CREATE DATABASE {t}_d", "DROP DATABASE {t}_d",
}

// innocent are statements that do not.
var innocent = []string{
	"SAVEPOINT a", "ROLLBACK TO a", "ROLLBACK WORK TO SAVEPOINT a", "RELEASE SAVEPOINT a", "DO 1", "SET @a = 1",
	"CREATE TEMPORARY TABLE {t}_tmp (id INT)", "CREATE OR REPLACE TEMPORARY TABLE {t}_tmp (id INT)",
	"INSERT INTO {t}_tmp VALUES (1)", "DROP TEMPORARY TABLE {t}_tmp", "BEGIN NOT ATOMIC SELECT 1; END",
	"UNLOCK TABLES", "SHOW TABLES", "EXPLAIN SELECT 1", "ANALYZE SELECT 1", "SELECT 'commit'", "/* commit */ SELECT 1",
	"WITH a AS (SELECT 1) SELECT * FROM a",
	"(SELECT 1)", "REPLACE INTO {t}_unique VALUES (7)", "SET time_zone = '+00:00'", "",
}

// Statements that commit are refused before they are sent. Those that do not are sent. What MariaDB does with each is
// seen on a connection that no store has.
func TestStatementsThatCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	execute(t, w.db, "CREATE TABLE "+w.table+"_unique (id INT PRIMARY KEY) ENGINE = InnoDB")
	execute(t, w.db, "CREATE TABLE "+w.table+"_probe (id INT) ENGINE = InnoDB")
	bare := pool(t, w.dsn)
	bare.SetMaxOpenConns(1)
	commits := func(statement string) bool {
		execute(t, bare, "SET autocommit = 0")
		execute(t, bare, "INSERT INTO "+w.table+"_probe VALUES (1)")
		_, err := bare.Exec(strings.ReplaceAll(statement, "{t}", w.table))
		if err != nil { // of the statement that is none, and of savepoints that are not there
			require.Regexp(t, "^Error (1065|1305) ", err.Error(), statement)
		}
		execute(t, bare, "ROLLBACK")
		execute(t, bare, "UNLOCK TABLES")
		execute(t, bare, "SET autocommit = 1")
		n := one[int](t, bare, "SELECT COUNT(*) FROM "+w.table+"_probe")
		execute(t, bare, "DELETE FROM "+w.table+"_probe")
		return n > 0
	}
	h := w.handle(t, "key")
	effect := h.effect(t)
	for _, statement := range implicit {
		require.True(t, commits(statement), statement)
		require.ErrorContains(t, h.run(strings.ReplaceAll(statement, "{t}", w.table)), "was not sent", statement)
		_, err := h.tx.Prepare(strings.ReplaceAll(statement, "{t}", w.table))
		require.ErrorContains(t, err, "was not sent", statement)
	}
	for _, statement := range append(innocent, "USE mysql", "ROLLBACK", "ROLLBACK WORK", "ROLLBACK AND CHAIN") {
		if statement != "ROLLBACK AND CHAIN" && statement != "USE mysql" {
			require.False(t, commits(statement), statement)
		}
	}
	for _, statement := range innocent {
		if err := h.run(strings.ReplaceAll(statement, "{t}", w.table)); err != nil {
			require.NotContains(t, err.Error(), "was not sent", statement)
		}
	}
	for _, statement := range []string{"USE mysql", "ROLLBACK", "ROLLBACK WORK", "ROLLBACK AND CHAIN"} {
		require.ErrorContains(t, h.run(statement), "was not sent", statement)
	}
	require.ErrorIs(t, h.run("commit"), mysqlstore.ErrCommit)
	require.ErrorIs(t, h.tx.Commit(), mysqlstore.ErrCommit)
	h.tx, _ = mysqlstore.Tx(h.ctx)
	w.requireEffects(t, 0, effect)
	require.NoError(t, h.answer(http.StatusCreated))
	w.requireEffects(t, 1, effect)
}

// A commit that is hidden in a procedure makes permanent what the handler has done. The operation does not run again,
// whatever the handler and its process do then.
func TestHiddenCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "multiStatements=true")
	execute(t, w.db, "CREATE TABLE "+w.table+"_x (id INT)")
	execute(t, w.db, "CREATE PROCEDURE "+w.table+"_p() ALTER TABLE "+w.table+"_x COMMENT 'changed'")
	leased := mysqlstore.New(w.db, mysqlstore.Options{Table: w.table})
	unknown := idempotency.Response{Omitted: true}
	stored := idempotency.Response{Status: http.StatusCreated, Body: []byte("done")}
	for name, test := range map[string]struct {
		end   func(t *testing.T, h *handling)
		want  idempotency.Response
		after int // effects that are made after the commit
	}{
		"answered": {func(t *testing.T, h *handling) { require.NoError(t, h.answer(201)) }, stored, 1},
		"refused": {func(t *testing.T, h *handling) {
			require.ErrorIs(t, h.answer(409), idempotency.ErrRolledBack)
		}, unknown, 0},
		"released": {func(t *testing.T, h *handling) { h.release(t) }, unknown, 0},
		"rolled back": {func(t *testing.T, h *handling) {
			require.NoError(t, h.tx.Rollback())
			require.ErrorIs(t, h.answer(409), idempotency.ErrRolledBack)
		}, unknown, 0},
		"killed": {func(t *testing.T, h *handling) {
			require.Error(t, h.run("KILL CONNECTION_ID()"))
			require.ErrorIs(t, h.answer(201), idempotency.ErrRolledBack)
		}, unknown, 0},
	} {
		for how, statement := range map[string]string{
			"procedure": "CALL " + w.table + "_p()", "behind another": "DO 1; COMMIT",
		} {
			key := name + ", " + how
			t.Run(key, func(t *testing.T) {
				t.Parallel()
				h := w.handle(t, key)
				before := h.effect(t)
				h.exec(t, statement)
				after := h.effect(t)
				test.end(t, h)
				w.requireEffects(t, 1, before)
				w.requireEffects(t, test.after, after)
				require.Equal(t, test.want, requireStored(t, w.store, key))
				require.Equal(t, test.want, requireStored(t, leased, key))
			})
		}
	}
}

// A transaction that a procedure of the handler has begun, with autocommit, is committed with the answer.
func TestTransactionBehindAutocommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.SetMaxOpenConns(1)
	execute(t, w.db, "CREATE PROCEDURE "+w.table+"_p() BEGIN SET autocommit = 1; START TRANSACTION; END")
	h := w.handle(t, "key")
	h.exec(t, "CALL "+w.table+"_p()")
	effect := h.effect(t)
	require.NoError(t, h.answer(http.StatusCreated))
	require.Equal(t, 0, one[int](t, w.db, "SELECT @@in_transaction"))
	w.requireEffects(t, 1, effect)
}

// A handler that gives the lock of its key away is protected by the primary key, or by the record that it has
// replaced: others wait for its transaction.
func TestPrimaryKeyDecidesWithoutLock(t *testing.T) {
	t.Parallel()
	commit := func(h *handling) error { return h.answer(http.StatusCreated) }
	rollBack := func(h *handling) error { return h.claim.Release(context.Background(), 0) }
	for name, test := range map[string]struct {
		expired bool // there is a record before
		end     func(*handling) error
		free    bool // another attempt gets the key
	}{
		"committed":                 {false, commit, false},
		"rolled back":               {false, rollBack, true},
		"committed over a record":   {true, commit, false},
		"rolled back over a record": {true, rollBack, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if test.expired {
				completed(t, w.store, "key")
				execute(t, w.db, "UPDATE "+w.table+" SET expires = 1")
			}
			h := w.handle(t, "key")
			effect := h.effect(t)
			h.exec(t, "DO RELEASE_ALL_LOCKS()")
			claimed := make(chan idempotency.Claim, 1)
			go func() {
				_, claim, err := w.store.Begin(context.Background(), keyOf("key"), request)
				if err != nil {
					t.Error(err)
				}
				claimed <- claim
			}()
			requireStuck(t, w.other(t), w.table)
			require.NoError(t, test.end(h))
			claim := <-claimed
			require.Equal(t, test.free, claim != nil)
			if claim != nil {
				require.NoError(t, claim.Release(context.Background(), time.Hour))
				w.requireEffects(t, 0, effect)
				return
			}
			w.requireEffects(t, 1, effect)
			require.Equal(t, http.StatusCreated, requireStored(t, w.store, "key").Status)
		})
	}
}

// One that waits for another's transaction in vain claims nothing, and leaves nothing.
func TestWaitWithoutLockEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.handle(t, "key")
	h.exec(t, "DO RELEASE_ALL_LOCKS()")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	record, claim, err := w.store.Begin(ctx, keyOf("key"), request)
	require.Nil(t, claim)
	if err == nil { // it has met its own lock
		require.Equal(t, idempotency.Record{NoLease: true}, record)
	}
	require.NoError(t, h.answer(http.StatusCreated))
	require.Equal(t, http.StatusCreated, requireStored(t, w.store, "key").Status)
}

// A claim that waits for another transaction for too long is repeated until its context ends.
func TestClaimIsRepeated(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "innodb_lock_wait_timeout=1")
	w := newWorldAt(t, m.DSN(), newOptions())
	h := w.handle(t, "key")
	h.exec(t, "DO RELEASE_ALL_LOCKS()")
	begun := make(chan error, 1)
	go func() {
		record, claim, err := w.store.Begin(context.Background(), keyOf("key"), request)
		if err == nil && (claim != nil || record.Response == nil) {
			err = fmt.Errorf("got %+v", record)
		}
		begun <- err
	}()
	eventually(t, "a second wait", func() bool {
		return one[int](t, w.other(t), "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS "+
			"WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_WAITS'") > 1
	})
	require.NoError(t, h.answer(http.StatusCreated))
	require.NoError(t, <-begun)
}

// Locks are the server's: those of two databases, or tables, must not meet.
func TestOtherDatabasesAreOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	elsewhere := "db_" + w.table[len("records_"):]
	execute(t, w.db, "CREATE DATABASE "+elsewhere)
	t.Cleanup(func() { execute(t, pool(t, server(t).DSN()), "DROP DATABASE "+elsewhere) })
	others := []*world{
		newWorldAt(t, strings.Replace(w.dsn, "/test", "/"+elsewhere, 1), mysqlstore.Options{Table: w.table}),
		newWorld(t),
	}
	_, claim := begun(t, w.store, "key")
	for _, other := range others {
		_, second := begun(t, other.store, "key")
		require.NoError(t, second.Complete(t.Context(), answer, time.Hour))
	}
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
}

// Large answers arrive as they are. One that the server does not take in one packet is stored without its body, and
// the effects with it.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	const most = 4 << 20
	m := servertest.MariaDB(t, fmt.Sprintf("max_allowed_packet=%d", most))
	for _, settings := range [][]string{
		nil, {"interpolateParams=true"}, {"maxAllowedPacket=100000"}, {"maxAllowedPacket=0"},
	} {
		w := newWorldAt(t, m.DSN(), newOptions(), settings...)
		for _, test := range []struct {
			size   int
			status int
			kept   bool
		}{
			{16 << 10, 201, true}, {17 << 10, 409, true}, {1 << 20, 201, true}, {(most - 9<<10) / 2, 201, true},
			{(most - 9<<10) / 2, 409, true}, {most / 2, 201, false}, {most / 2, 409, false}, {2 * most, 201, false},
		} {
			key := fmt.Sprint(test)
			h := w.handle(t, key)
			effect := h.effect(t)
			body := []byte(strings.Repeat("'\\\x00", test.size/3)) // is twice as long when it is quoted
			require.NoError(t, h.claim.Complete(t.Context(), idempotency.Response{Status: test.status, Body: body}, time.Hour))
			stored := requireStored(t, w.store, key)
			require.Equal(t, test.status, stored.Status)
			require.Equal(t, !test.kept, stored.Omitted, key)
			if test.kept {
				require.Equal(t, body, stored.Body)
			}
			w.requireEffects(t, map[bool]int{true: 1}[test.status == 201], effect)
		}
	}
}

// A session without autocommit would keep what it reads.
func TestAutocommitMustBeOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	db := pool(t, w.dsn, "autocommit=0")
	_, claim, err := mysqlstore.NewTx(db, mysqlstore.Options{Table: w.table}).Begin(t.Context(), keyOf("key"), request)
	require.ErrorContains(t, err, "autocommit")
	require.Nil(t, claim)
}

// A session that reads what is not committed would replay an answer that may yet be rolled back.
func TestUncommittedIsNotRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.handle(t, "key")
	db := pool(t, w.dsn, "tx_isolation=%27READ-UNCOMMITTED%27")
	store := mysqlstore.NewTx(db, mysqlstore.Options{Table: w.table})
	_, claim, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorContains(t, err, "READ UNCOMMITTED")
	require.Nil(t, claim)
	h.release(t)
}

// Options that are wrong are said by Begin.
func TestTxOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, opts := range []mysqlstore.Options{{IdleTimeout: -1}, {IdleTimeout: 1000 * time.Hour}, {Table: "`"}} {
		store := mysqlstore.NewTx(pool(t, server(t).DSN()), opts)
		_, claim, err := store.Begin(t.Context(), keyOf("key"), request)
		require.ErrorContains(t, err, "mysqlstore: ")
		require.Nil(t, claim)
	}
}

// A test gives its own transaction to a handler.
func TestWithTx(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	own, err := w.db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	ctx := mysqlstore.WithTx(t.Context(), own)
	tx, ok := mysqlstore.Tx(ctx)
	require.True(t, ok)
	require.Same(t, own, tx)
	require.False(t, mysqlstore.KeepEffects(ctx))
	require.NoError(t, tx.Commit())
	_, ok = mysqlstore.Tx(t.Context())
	require.False(t, ok)
}
