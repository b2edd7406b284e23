package mysqlstore_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// If the connection breaks during a step of the store, the store repeats the step, the change is made once, and the
// caller gets the result.
func TestConnectionBreaks(t *testing.T) {
	t.Parallel()
	operation := keyOf("key").OperationID()
	for _, fault := range []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.CutRequest, servertest.CutReply,
	} {
		for skip, step := range []string{"look", "claim", "complete"} {
			t.Run(fmt.Sprint(step, " ", fault), func(t *testing.T) {
				t.Parallel()
				m := sharedServer(t)
				proxy := servertest.NewProxy(t, m.Addr())
				db := openPool(t, m.DSNAt(proxy.Addr()))
				store, table := newStore(t, db)
				completeKey(t, store, "warm")

				proxy.Inject(servertest.Rule{Fault: fault, Pattern: hex.EncodeToString(operation[:]), Skip: skip})
				record, claim := claimKey(t, store, "key")
				require.Equal(t, 1, record.Attempt)
				require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
				require.Equal(t, 1, proxy.Strikes())
				requireReplay(t, store, "key")
				require.Equal(t, 2, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table))
			})
		}
	}
}

// If the context ends while the result of a claim is unknown, the error contains the claim, so the caller can
// release it.
func TestClaimInDoubt(t *testing.T) {
	t.Parallel()
	operation := keyOf("key").OperationID()
	for _, tt := range []struct {
		fault           servertest.Fault
		skippedMessages int
		wantClaim       bool
	}{
		{servertest.HoldReply, 0, false}, // the reply to the read
		{servertest.HoldReply, 1, true},
		{servertest.HoldRequest, 1, true},
		{servertest.HoldReply, 2, true}, // the renewal, because the statement has outlasted the short lease
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			t.Parallel()
			m := sharedServer(t)
			proxy := servertest.NewProxy(t, m.Addr())
			store, _ := newStore(t, openPool(t, m.DSNAt(proxy.Addr())))
			completeKey(t, store, "warm")
			proxy.Inject(servertest.Rule{Fault: tt.fault, Pattern: hex.EncodeToString(operation[:]), Skip: tt.skippedMessages})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			asked := request
			if tt.skippedMessages == 2 {
				asked.Lease = time.Microsecond
			}
			_, _, err := store.Begin(ctx, keyOf("key"), asked)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, idempotency.ErrStoreBusy)
			claim := testservice.InDoubt(err)
			require.Equal(t, tt.wantClaim, claim != nil)
			if claim != nil {
				proxy.Release()
				require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
				record, _ := claimKey(t, store, "key")
				require.Equal(t, 2, record.Attempt)
			}
		})
	}
}

// A killed server keeps all acknowledged changes, and the pool reconnects after the restart.
func TestServerIsKilled(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "innodb_flush_log_at_trx_commit=1")
	store, _ := newStore(t, openPool(t, m.DSN()))
	for i := range 20 {
		completeKey(t, store, fmt.Sprint("completed ", i))
	}
	_, claim := claimKey(t, store, "running")
	m.Crash()
	_, _, err := store.Begin(t.Context(), keyOf("another"), request)
	require.Error(t, err)
	require.Nil(t, testservice.InDoubt(err))
	require.NoError(t, m.Restart())
	for i := range 20 {
		requireReplay(t, store, fmt.Sprint("completed ", i))
	}
	require.NoError(t, claim.Extend(t.Context(), time.Minute))
	require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
	requireReplay(t, store, "running")
}

// The pool replaces idle connections that the server has closed. The callers notice nothing.
func TestIdleConnectionsDie(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	db := openPool(t, m.DSN())
	store, _ := newStore(t, db)
	var running sync.WaitGroup
	for i := range 10 {
		running.Go(func() { _ = tryComplete(store, fmt.Sprint(i)) })
	}
	running.Wait()
	require.Greater(t, db.Stats().Idle, 1)
	require.NoError(t, m.Restart())
	completeKey(t, store, "key")
	requireReplay(t, store, "key")
}

// While another transaction locks the record, the store retries until the context of the call ends. The error is
// ErrStoreBusy then.
func TestLockIsWaitedFor(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN(), "innodb_lock_wait_timeout=0") // each wait ends at once, with error 1205
	store, table := newStore(t, db)
	_, owner := claimKey(t, store, "key")
	operation := keyOf("key").OperationID()
	other, err := db.Begin()
	require.NoError(t, err)
	_, err = other.Exec("SELECT 1 FROM "+table+" WHERE operation = ? FOR UPDATE", operation[:])
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = owner.Extend(ctx, time.Minute)
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	done := make(chan error)
	go func() { done <- owner.Complete(t.Context(), answer, time.Hour) }()
	select {
	case err := <-done:
		t.Errorf("completed a record that was locked: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, other.Rollback())
	require.NoError(t, <-done)
	requireReplay(t, store, "key")
}

// The store repeats a step that the server has rolled back because of a deadlock.
func TestDeadlock(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, table := newStore(t, db)
	_, owner := claimKey(t, store, "key")
	operation := keyOf("key").OperationID()
	// Each change of the record also writes a row of another table, because two transactions that wait for each
	// other need two rows.
	execStatement(t, db, "CREATE TABLE "+table+"_side (n INT PRIMARY KEY, v INT) ENGINE = InnoDB")
	execStatement(t, db, "INSERT INTO "+table+"_side VALUES (1, 0)")
	execStatement(t, db, fmt.Sprintf("CREATE TRIGGER %s_t BEFORE UPDATE ON %s FOR EACH ROW UPDATE %s_side SET v = v + 1",
		table, table, table))
	before := queryValue[int](t, db, deadlocksQuery)
	for range 5 {
		other, err := db.Begin()
		require.NoError(t, err)
		for range 20 { // makes this transaction the heavier one, so the server rolls back the other
			_, err = other.Exec("UPDATE " + table + "_side SET v = v + 1")
			require.NoError(t, err)
		}
		_, err = other.Exec("INSERT INTO " + table + "_side SELECT seq + 1000, 0 FROM seq_1_to_100")
		require.NoError(t, err)
		done := make(chan error, 1)
		go func() { done <- owner.Extend(t.Context(), time.Minute) }()
		requireWaiting(t, db, table)
		_, err = other.Exec("UPDATE "+table+" FORCE INDEX (PRIMARY) SET expires = expires WHERE operation = ?", operation[:])
		require.NoError(t, err)
		require.NoError(t, other.Rollback())
		require.NoError(t, <-done)
	}
	require.GreaterOrEqual(t, queryValue[int](t, db, deadlocksQuery)-before, 5)
	require.NoError(t, owner.Complete(t.Context(), answer, time.Hour))
}

// If other callers use all connections of the pool, the store reports ErrStoreBusy instead of a failure.
func TestPoolIsUsedUp(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, _ := newStore(t, db)
	completeKey(t, store, "warm")
	db.SetMaxOpenConns(1)
	other, err := db.Begin()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err = store.Begin(ctx, keyOf("key"), request)
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.Nil(t, testservice.InDoubt(err))
	require.NoError(t, other.Rollback())
	completeKey(t, store, "key")
}

// A server that refuses further connections is busy, too.
func TestServerHasTooManyConnections(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "max_connections=10", "extra_max_connections=1")
	admin := openPool(t, m.DSN())
	execStatement(t, admin, "CREATE USER few@'127.0.0.1' IDENTIFIED BY 'few' WITH MAX_USER_CONNECTIONS 1")
	execStatement(t, admin, "GRANT ALL ON test.* TO few@'127.0.0.1'")
	db := openPool(t, "few:few@tcp("+m.Addr()+")/test")
	store, _ := newStore(t, db)
	other, err := db.Begin()
	require.NoError(t, err)
	_, _, err = store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorIs(t, err, idempotency.ErrStoreBusy)
	require.Nil(t, testservice.InDoubt(err))
	require.NoError(t, other.Rollback())
	completeKey(t, store, "key")
}

// An answer that exceeds the server's max_allowed_packet is stored without its body, so the claim still ends.
func TestAnswerAboveThePacket(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t, "max_allowed_packet=1M")
	for name, settings := range map[string][]string{
		"default": nil, "interpolated": {"interpolateParams=true"}, "asks the server": {"maxAllowedPacket=0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, _ := newStore(t, openPool(t, m.DSN(), settings...))
			for _, size := range []int{1 << 10, 1<<19 - 5<<10, 1<<19 - 2<<10, 1 << 19, 1 << 20, 1<<20 + 1, 3 << 20} {
				key := fmt.Sprint(size)
				_, claim := claimKey(t, store, key)
				large := idempotency.Response{Status: 201, Body: []byte(strings.Repeat("x", size))}
				require.NoError(t, claim.Complete(t.Context(), large, time.Hour))
				record, _, err := store.Begin(t.Context(), keyOf(key), request)
				require.NoError(t, err)
				require.Equal(t, 201, record.Response.Status)
				require.Equal(t, size > 1<<19-4<<10, record.Response.Omitted, size)
				require.True(t, record.Response.Omitted || len(record.Response.Body) == size)
			}
		})
	}
}

// If a server becomes read-only, calls fail for a while. The store gives up the connections, so the pool finds the
// server that has taken over.
func TestServerIsReadOnly(t *testing.T) {
	t.Parallel()
	old, next := servertest.MariaDB(t), servertest.MariaDB(t)
	for _, m := range []*servertest.Maria{old, next} {
		admin := openPool(t, m.DSN())
		execStatement(t, admin, "CREATE USER app@'127.0.0.1' IDENTIFIED BY 'app'")
		execStatement(t, admin, "GRANT SELECT, INSERT, UPDATE, DELETE ON test.* TO app@'127.0.0.1'")
		require.NoError(t, mysqlstore.Migrate(t.Context(), admin, mysqlstore.Options{}))
	}
	active := old.Addr()
	db := openPoolTo(t, "app:app@tcp(primary)/test", func() string { return active })
	store := mysqlstore.New(db, mysqlstore.Options{})
	var running sync.WaitGroup
	for i := range 10 { // opens connections
		running.Go(func() { _ = tryComplete(store, fmt.Sprint(i)) })
	}
	running.Wait()

	execStatement(t, openPool(t, old.DSN()), "SET GLOBAL read_only = 1")
	active = next.Addr()
	_, _, err := store.Begin(t.Context(), keyOf("key"), request)
	require.ErrorContains(t, err, "read-only")
	require.NotErrorIs(t, err, idempotency.ErrStoreFull)
	require.Nil(t, testservice.InDoubt(err))
	for i := range 10 {
		completeKey(t, store, fmt.Sprint("next ", i))
	}
	require.Equal(t, 10, queryValue[int](t, openPool(t, next.DSN()), "SELECT COUNT(*) FROM idempotency_records"))
}

// A full table refuses new operations.
func TestTableIsFull(t *testing.T) {
	t.Parallel()
	m := servertest.MariaDB(t)
	db := openPool(t, m.DSN())
	opts := newOptions()
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	execStatement(t, db, "ALTER TABLE "+opts.Table+
		" MODIFY response VARBINARY(1000), MODIFY steps BINARY(1), MODIFY resolved BINARY(1), "+
		"MODIFY user_id VARCHAR(100), MODIFY endpoint VARCHAR(100), MODIFY `key` VARCHAR(100), ENGINE = MEMORY, MAX_ROWS = 10")
	execStatement(t, db, "SET GLOBAL max_heap_table_size = 16384")
	store := mysqlstore.New(db, opts)
	var err error
	for i := 0; err == nil && i < 100_000; i++ {
		err = tryComplete(store, fmt.Sprint(i))
	}
	require.ErrorIs(t, err, idempotency.ErrStoreFull)
	require.False(t, errors.Is(err, idempotency.ErrStoreBusy))
}

// The INSERT of a claim was sent twice, because the first connection broke. The first INSERT arrives only after the
// handler has run and has released the key. This late INSERT must not claim the key, because the claim would never
// be renewed or released.
func TestLateClaimOfAFreedKey(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, table := newStore(t, db)
	_, claim := claimKey(t, store, "key")
	execStatement(t, db, "CREATE TABLE "+table+"_late AS SELECT * FROM "+table)
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: 0}))
	_, err := db.ExecContext(t.Context(), "INSERT INTO "+table+" SELECT * FROM "+table+"_late")
	require.ErrorContains(t, err, "Duplicate entry")
	other := request
	other.Fingerprint[0]++
	record, claim, err := store.Begin(t.Context(), keyOf("key"), other)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Equal(t, 1, record.Attempt)
}
