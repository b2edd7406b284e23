package mysqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// Maintain deletes all expired records, and only these, in statements of up to 200 records.
func TestMaintain(t *testing.T) {
	t.Parallel()
	db := openPool(t, servertest.MariaDB(t).DSN())
	store, table := newStore(t, db)
	const records = 1001 // in several batches
	execStatement(t, db, "INSERT INTO "+table+
		" SELECT unhex(md5(seq)), '', '', seq, 1, '', '', 0, NULL, seq, NULL, NULL, NULL, NULL, NULL "+
		"FROM seq_1_to_1001")
	require.Equal(t, records, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table))
	completeKey(t, store, "key")
	claimKey(t, store, "running")
	require.NoError(t, store.Maintain(t.Context()))
	require.Equal(t, 6, queryValue[int](t, db, statusQuery+"'COM_DELETE_MULTI'"))
	require.Equal(t, 2, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table))
	requireReplay(t, store, "key")
	require.NoError(t, store.Maintain(t.Context()))
}

// Other transactions lock more expired records than one search finds. Maintain still deletes the records that
// expired later. Many records may have expired at the same time.
func TestMaintainPassesByWhatIsLocked(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	for name, expires := range map[string]string{"one by one": "seq", "at once": "7"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, table := newStore(t, db)
			execStatement(t, db, "INSERT INTO "+table+" SELECT unhex(md5(seq)), IF(seq > 450, '', 'locked'), '', seq, 1, "+
				"'', '', 0, NULL, IF(seq > 450, 450 + seq, "+expires+"), NULL, NULL, NULL, NULL, NULL FROM seq_1_to_500")
			locker, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
			require.NoError(t, err)
			defer locker.Rollback()
			_, err = locker.ExecContext(t.Context(), "UPDATE "+table+" SET token = 'x' WHERE user_id = 'locked'")
			require.NoError(t, err)
			require.NoError(t, store.Maintain(t.Context()))
			require.Equal(t, 450, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table))
			require.Equal(t, 450, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table+" WHERE user_id = 'locked'"))
			require.NoError(t, locker.Rollback())
			require.NoError(t, store.Maintain(t.Context()))
			require.Zero(t, queryValue[int](t, db, "SELECT COUNT(*) FROM "+table))
		})
	}
}

// Several instances delete expired records while many others claim the keys of the same records. No call fails.
func TestMaintainWhileManyClaim(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	db.SetMaxOpenConns(40)
	db.SetMaxIdleConns(40)
	store, table := newStore(t, db)
	before := queryValue[int](t, db, deadlocksQuery)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var running sync.WaitGroup
	var executed atomic.Int64
	const enough = 900 // for each key to expire several times
	asked := idempotency.ClaimRequest{Fingerprint: request.Fingerprint, Lease: time.Minute, TTL: time.Minute}
	for worker := range 16 {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprint((worker + i) % 300)
				_, claim, err := store.Begin(t.Context(), keyOf(key), asked)
				if err != nil {
					t.Error(err)
					return
				}
				if claim == nil {
					continue
				}
				if executed.Add(1) == enough {
					cancel()
				}
				err = claim.Complete(t.Context(), answer, time.Millisecond)
				if err != nil && !errors.Is(err, idempotency.ErrRestored) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		running.Go(func() {
			for ctx.Err() == nil {
				if err := store.Maintain(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	running.Wait()
	require.GreaterOrEqual(t, executed.Load(), int64(enough))
	t.Logf("%d executions, %d deadlocks on the server", executed.Load(), queryValue[int](t, db, deadlocksQuery)-before)
	requireEventually(t, "the last records to expire", func() bool {
		require.NoError(t, store.Maintain(t.Context()))
		return queryValue[int](t, db, "SELECT COUNT(*) FROM "+table) == 0
	})
}

const (
	statusQuery    = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = "
	deadlocksQuery = statusQuery + "'INNODB_DEADLOCKS'"
)

// The janitor continues after a failure, and ends with its context.
func TestJanitor(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	opts := newOptions()
	store := mysqlstore.New(db, opts)
	ctx, cancel := context.WithCancel(t.Context())
	failures := make(chan error, 100)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		store.Janitor(ctx, 10*time.Millisecond, func(err error) {
			select {
			case failures <- err:
			default:
			}
		})
	}()
	require.ErrorContains(t, <-failures, "mysqlstore: maintain: ") // there is no table
	require.NoError(t, mysqlstore.Migrate(t.Context(), db, opts))
	completeKey(t, store, "key")
	execStatement(t, db, "UPDATE "+opts.Table+" SET expires = 0")
	requireEventually(t, "the deletion", func() bool { return queryValue[int](t, db, "SELECT COUNT(*) FROM "+opts.Table) == 0 })
	cancel()
	<-ended
}
