package mysqlstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// The server's time counts from 1970 in UTC, in every time zone of a session, and on the days when local time jumps.
func TestTimeIsThatSince1970(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"1774745999.9", "1774746000", "1792889999.9", "1792890000", "1792893600", "1"} {
		for _, settings := range [][]string{nil, {"time_zone=%27-03%3A30%27"}, {"parseTime=true", "loc=Local"}} {
			db := openPool(t, sharedServer(t).DSN(), settings...)
			db.SetMaxOpenConns(1)
			now := queryValue[float64](t, db, "SELECT "+mysqlstore.Now+"/1000000")
			require.InDelta(t, float64(time.Now().UnixMicro())/1e6, now, 1)

			execStatement(t, db, "SET timestamp = "+at) // changes NOW but not SYSDATE, as a wait between the two would
			seems := queryValue[float64](t, db, "SELECT "+mysqlstore.Now+"/1000000 - @@timestamp")
			require.True(t, seems >= -60 && seems < 1740, "%s %v: %f", at, settings, seems)
		}
	}
	require.Equal(t, "CET", queryValue[string](t, openPool(t, sharedServer(t).DSN()), "SELECT @@system_time_zone"))
}

// Local time jumps while a statement waits. The test sets the values of NOW and SYSDATE, because these days come
// only twice a year.
func TestLocalTimeJumpsDuringAWait(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	for name, tt := range map[string]struct {
		now, sysdate string
		want         float64
	}{
		"no wait":                {"2026-10-25 02:59:59.5", "2026-10-25 02:59:59.5", 0},
		"a wait":                 {"2026-10-25 01:00:00", "2026-10-25 01:00:50.25", 50.25},
		"into winter":            {"2026-10-25 02:59:59.5", "2026-10-25 02:00:01", 1.5},
		"into summer":            {"2026-03-29 01:59:59.5", "2026-03-29 03:00:01", 1.5},
		"by half an hour":        {"2026-04-05 01:59:59.5", "2026-04-05 01:30:01", 1.5},
		"the clock was set back": {"2026-10-25 01:00:00.000005", "2026-10-25 01:00:00", -0.000005},
		"over midnight":          {"2026-12-31 23:59:59", "2027-01-01 00:00:09", 10},
	} {
		got := queryValue[float64](t, db, mysqlstore.Waited(tt.now, tt.sysdate))
		require.InDelta(t, tt.want, got, 1e-9, name)
	}
}

// A lease begins when its statement has the record, however long the statement has waited for another transaction.
func TestLeasesCountFromAfterAWait(t *testing.T) {
	t.Parallel()
	const wait = time.Second
	short := request
	short.Lease = wait / 2
	for name, tt := range map[string]struct {
		lockStatement string // another transaction locks the record
		prepareKey    func(t *testing.T, store idempotency.Store) idempotency.Claim
		runStep       func(ctx context.Context, store idempotency.Store, claim idempotency.Claim) error
	}{
		"claim of a free key": {"INSERT INTO %s SELECT ?, '', '', '', 1, '', '', 0, 0, 0, NULL, NULL, NULL, NULL, NULL",
			func(*testing.T, idempotency.Store) idempotency.Claim { return nil }, newClaimFunc(short)},
		"claim of a released key": {"SELECT 1 FROM %s WHERE operation = ? FOR UPDATE",
			func(t *testing.T, store idempotency.Store) idempotency.Claim {
				_, claim := claimKey(t, store, "key")
				require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
				return nil
			}, newClaimFunc(short)},
		"renewal": {"SELECT 1 FROM %s WHERE operation = ? FOR UPDATE",
			func(t *testing.T, store idempotency.Store) idempotency.Claim {
				_, claim := claimKey(t, store, "key")
				return claim
			},
			func(ctx context.Context, _ idempotency.Store, claim idempotency.Claim) error {
				return claim.Extend(ctx, short.Lease)
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := openPool(t, sharedServer(t).DSN())
			store, table := newStore(t, db)
			claim := tt.prepareKey(t, store)
			operation := keyOf("key").OperationID()
			other, err := db.Begin()
			require.NoError(t, err)
			_, err = other.Exec(fmt.Sprintf(tt.lockStatement, table), operation[:])
			require.NoError(t, err)

			done := make(chan error, 1)
			go func() { done <- tt.runStep(t.Context(), store, claim) }()
			requireWaiting(t, db, table)
			began := time.Now()
			time.Sleep(wait) // the wait that the lease must not include
			require.NoError(t, other.Rollback())
			released := time.Since(began)
			require.NoError(t, <-done)
			const lapses = "SELECT lease - UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 FROM %s WHERE operation = ?"
			left := queryValue[float64](t, db, fmt.Sprintf(lapses, table), operation[:])
			require.Positive(t, left, "waited %s", released)
			require.LessOrEqual(t, left, float64(short.Lease.Microseconds()))
		})
	}
}

func newClaimFunc(request idempotency.ClaimRequest) func(context.Context, idempotency.Store, idempotency.Claim) error {
	return func(ctx context.Context, store idempotency.Store, _ idempotency.Claim) error {
		_, claim, err := store.Begin(ctx, keyOf("key"), request)
		if err == nil && claim == nil {
			return idempotency.ErrInProgress
		}
		return err
	}
}

// A claim has waited so long that another attempt has taken the key over before the claim could renew its lease.
func TestKeyIsTakenOverBehindAWait(t *testing.T) {
	t.Parallel()
	db := openPool(t, sharedServer(t).DSN())
	store, table := newStore(t, db)
	short := request
	short.Lease = 500 * time.Millisecond
	execStatement(t, db, "CREATE TRIGGER "+table+"_late BEFORE INSERT ON "+table+` FOR EACH ROW BEGIN
		DO SLEEP(0.3); -- of the server
		SET NEW.token = REPEAT('x', 16); -- as if the other had replaced the record when the claimant asks for it again
	END`)
	record, claim, err := store.Begin(t.Context(), keyOf("key"), short)
	require.NoError(t, err)
	require.Nil(t, claim, "two hold the key")
	require.Nil(t, record.Response)
}
