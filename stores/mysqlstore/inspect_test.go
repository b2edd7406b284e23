package mysqlstore_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// The inspector works the same with all settings of the driver and of the session.
func TestInspectorConformance(t *testing.T) {
	t.Parallel()
	sound, odd := newTableStore(t), newTableStore(t, allSettings...)
	for name, w := range map[string]*tableStore{
		"default": sound, "all settings": odd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotencytest.RunInspector(t, func(*testing.T) idempotency.Store { return w.store })
			idempotencytest.RunResolver(t, func(*testing.T) idempotency.Store { return w.store })
			testservice.CheckStatus(t, w.store)
			require.Zero(t, queryValue[int](t, w.db, "SELECT COUNT(*) FROM "+w.table+" WHERE NOT answer_size <=> LENGTH(response)"))
		})
	}
}

// abandonKey claims a key, lets the lease lapse, and returns the entry.
func (w *tableStore) abandonKey(t testing.TB, key string) idempotency.Entry {
	t.Helper()
	return w.newRowSubject().AbandonKey(t, key)
}

// lapseLease lets the lease of a key lapse, and returns the entry.
func (w *tableStore) lapseLease(t testing.TB, key string) idempotency.Entry {
	t.Helper()
	execStatement(t, w.db, "UPDATE "+w.table+" SET lease = lease - 3600000000 WHERE `key` = ?", key)
	entry := inspectKey(t, w.store, key)
	require.Equal(t, idempotency.StateAbandoned, entry.State)
	return entry
}

// While the transaction of a step locks the record, operators cannot change the record, even if its lease has
// lapsed.
func TestOperatorsWaitForAStep(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(w *tableStore, entry idempotency.Entry) error{
		"forget": forgetEntry, "resolve": resolveEntry,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTableStore(t)
			_, claim := claimKey(t, w.store, "key")
			entry, changed := w.lapseLease(t, "key"), make(chan error, 1)
			var tx *sql.Tx
			_, err := claim.(idempotency.TxCheckpointer).CheckpointTx(t.Context(), &idempotency.TxStep{
				Name: "book", Var: &tx, Timeout: 20 * time.Second, Run: func() ([]byte, error) {
					go func() { changed <- change(w, entry) }()
					select {
					case err := <-changed:
						return nil, fmt.Errorf("changed what a transaction has: %w", err)
					case <-time.After(100 * time.Millisecond): // a change without the lock takes much less
						return []byte("1"), nil
					}
				},
			})
			require.NoError(t, err)
			require.ErrorIs(t, <-changed, idempotency.ErrInProgress)
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			requireReplay(t, w.store, "key")
		})
	}
}

func resolveEntry(w *tableStore, entry idempotency.Entry) error {
	return w.store.Resolve(context.Background(), entry, happened)
}

func forgetEntry(w *tableStore, entry idempotency.Entry) error {
	return w.store.Forget(context.Background(), entry)
}

// If the connection breaks, an operator's change is made once, and the caller gets the result.
func TestOperatorsConnectionBreaks(t *testing.T) {
	t.Parallel()
	for _, fault := range []servertest.Fault{
		servertest.LoseRequest, servertest.LoseReply, servertest.CutRequest, servertest.CutReply,
	} {
		for name, change := range map[string]func(w *tableStore, entry idempotency.Entry) error{
			"forget": forgetEntry, "resolve": resolveEntry,
		} {
			operation := keyOf("key").OperationID()
			key := hex.EncodeToString(operation[:])
			for step, at := range map[string]servertest.Rule{
				"look": {Pattern: key}, "lock": {Pattern: key, Skip: 1}, "change": {Pattern: key, Skip: 2},
				"commit": {Pattern: "COMMIT"},
			} {
				t.Run(fmt.Sprint(name, " ", step, " ", fault), func(t *testing.T) {
					t.Parallel()
					through, direct, proxy := newProxiedStore(t)
					require.NoError(t, change(through, through.abandonKey(t, "warm")))
					entry := direct.abandonKey(t, "key")
					at.Fault = fault
					proxy.Inject(at)
					require.NoError(t, change(through, entry))
					require.Equal(t, 1, proxy.Strikes())
					again := change(direct, entry)
					if name == "forget" {
						require.ErrorIs(t, again, idempotency.ErrNoRecord)
						return
					}
					require.ErrorIs(t, again, idempotency.ErrEntryChanged)
					require.Equal(t, *happened.Response, requireStored(t, direct.store, "key"))
				})
			}
		}
	}
}

func TestOperatorsSeeChanges(t *testing.T) {
	t.Parallel()
	rowtest.OperatorsSeeChanges(t, newSubject(t), []rowtest.Change{
		{"attempt = attempt", nil, nil},
		{"created = created + 1", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
		{"attempt = attempt + 1", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
		{"lease = NULL", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
		{"lease = lease + 7200000000", idempotency.ErrInProgress, idempotency.ErrInProgress},
		{"lease = NULL, response = 'an answer'", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
		{"expires = 0", idempotency.ErrNoRecord, idempotency.ErrNoRecord},
		{"expires = 9223372036854775807", nil, nil},
		{"token = x'00000000000000000000000000'", nil, nil},
	})
}

// A checkpoint that arrives during a resolution is either kept or refused.
func TestResolveWhileACheckpointComes(t *testing.T) {
	t.Parallel()
	w := newTableStore(t)
	for i := range 20 {
		key := fmt.Sprint(i)
		_, claim := claimKey(t, w.store, key)
		entry := w.lapseLease(t, key)
		var kept, resolved error
		var both sync.WaitGroup
		both.Go(func() {
			_, kept = claim.(idempotency.Checkpointer).Checkpoint(context.Background(), "charge", []byte("17"))
		})
		both.Go(func() { resolved = w.store.Resolve(context.Background(), entry, notHappened) })
		both.Wait()
		require.NoError(t, resolved)
		seen := inspectKey(t, w.store, key)
		require.Equal(t, notHappened.Operator, seen.Resolved.Operator)
		if kept != nil {
			require.ErrorIs(t, kept, idempotency.ErrClaimLost)
			require.Empty(t, seen.Steps)
			continue
		}
		require.Equal(t, []idempotency.StepSize{{Name: "charge", Bytes: 2}}, seen.Steps)
	}
}

// A resolution that does not fit into a packet changes nothing, whether its answer or its note is too large.
func TestNoRoomForTheResolution(t *testing.T) {
	t.Parallel()
	w := newTableStoreAt(t, servertest.MariaDB(t, "max_allowed_packet=1M").DSN())
	_, claim := claimKey(t, w.store, "key")
	_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", make([]byte, 519_000))
	require.NoError(t, err)
	entry := w.lapseLease(t, "key")
	before := w.newRowSubject().Dump(t, "key")
	large := idempotency.Response{Status: 201, Body: make([]byte, 600_000)}
	long := idempotency.Resolution{Operator: "bob", Reason: strings.Repeat("x", 2_000), TTL: time.Hour}
	for _, resolution := range []idempotency.Resolution{{Response: &large, TTL: time.Hour}, long} {
		require.ErrorIs(t, w.store.Resolve(t.Context(), entry, resolution), idempotency.ErrStoreFull)
	}
	require.Equal(t, before, w.newRowSubject().Dump(t, "key"))
	require.NoError(t, w.store.Resolve(t.Context(), entry, notHappened))
	require.Equal(t, []idempotency.StepSize{{Name: "charge", Bytes: 519_000}}, inspectKey(t, w.store, "key").Steps)
}

func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	w := newTableStore(t)
	execStatement(t, w.db, "ALTER TABLE "+w.table+" MODIFY fingerprint VARBINARY(99)")
	s := w.newRowSubject()
	set := s.Set
	s.Set = func(t testing.TB, key, to string) { set(t, key, to+", answer_size = LENGTH(response)") }
	rowtest.UnreadableRecords(t, s, []string{
		"fingerprint = 'short'", "attempt = 0", "attempt = 2147483647", "lease = 0", "lease = 9223372036854775807, response = NULL",
	})
	unreadable := queryValue[int](t, w.db, "SELECT COUNT(*) FROM "+w.table) - 1
	execStatement(t, w.db, "INSERT INTO "+w.table+" SELECT UNHEX(MD5('unreadable')), '', '', '', -1, '', '', 0, NULL, "+
		"9223372036854775807, NULL, NULL, NULL, NULL, NULL")
	rowtest.RequireUnreadable(t, w.store, unreadable+1)
}

func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	rowtest.DamagedRecords(t, newSubject, map[string]bool{
		"user_id = 'mallory'": false, "user_id = 'USER 42'": false, "user_id = 'user 42 '": false,
		"response = 'hello'": true, "response = SUBSTR(response, 1, LENGTH(response) - 1)": true,
	})
}

func TestDamagedSteps(t *testing.T) {
	t.Parallel()
	rowtest.DamagedSteps(t, newSubject(t))
}

func TestListByNames(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, allSettings} {
		rowtest.ListByNames(t, newTableStore(t, settings...).store, "mysqlstore")
	}
}

func TestListPages(t *testing.T) {
	t.Parallel()
	w := newTableStore(t)
	rowtest.ListPages(t, w.store, func(keys []string) {
		for _, key := range keys {
			w.newRowSubject().Set(t, key, "created = 1700000000000000")
		}
	})
}

func TestListEach(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, allSettings} {
		rowtest.ListEach(t, newTableStore(t, settings...).store)
	}
}

// A listing reads only the answers of its page.
func TestListReadsNoAnswers(t *testing.T) {
	t.Parallel()
	w := newTableStoreAt(t, servertest.MariaDB(t).DSN())
	for i := range 30 {
		_, claim := claimKey(t, w.store, fmt.Sprint(i))
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Body: make([]byte, 200_000)}, time.Hour))
	}
	const requested = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS " +
		"WHERE VARIABLE_NAME = 'INNODB_BUFFER_POOL_READ_REQUESTS'"
	for _, request := range []idempotency.ListRequest{
		{Limit: 1}, {Limit: 1, Order: idempotency.LargestFirst}, {Limit: 1, States: []idempotency.State{idempotency.StateCompleted}},
	} {
		requireEventually(t, "a listing while the server does nothing else", func() bool {
			before := queryValue[int](t, w.db, requested)
			listing, err := w.store.List(t.Context(), request)
			require.NoError(t, err)
			require.Len(t, listing.Entries, 1)
			require.Greater(t, listing.Totals[idempotency.StateCompleted].Bytes, int64(30*200_000))
			return queryValue[int](t, w.db, requested)-before < 100 // pages; an answer takes 13 pages
		})
	}
}

// A listing neither waits for transactions that change records, nor locks records.
func TestListLocksNothing(t *testing.T) {
	t.Parallel()
	for _, settings := range [][]string{nil, {"tx_isolation=%27SERIALIZABLE%27"}} {
		w := newTableStore(t, settings...)
		for i := range 50 {
			completeKey(t, w.store, fmt.Sprint(i))
		}
		other, err := w.openOtherPool(t).Begin()
		require.NoError(t, err)
		_, err = other.Exec("SELECT COUNT(*) FROM " + w.table + " FOR UPDATE")
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		listing, err := w.store.List(ctx, idempotency.ListRequest{})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 50)
		entry, err := w.store.Inspect(ctx, keyOf("1"))
		require.NoError(t, err)
		require.Equal(t, idempotency.StateCompleted, entry.State)
		require.NoError(t, other.Rollback())
	}
}

// A user with SELECT alone can inspect and list, but cannot change records.
func TestInspectAsAReader(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	m := servertest.MariaDB(t)
	w := newTableStoreAt(t, m.DSN())
	execStatement(t, w.db, "CREATE USER reader@'127.0.0.1' IDENTIFIED BY 'r'")
	execStatement(t, w.db, "GRANT SELECT ON test."+w.table+" TO reader@'127.0.0.1'")
	reader := func() *mysqlstore.Table { // a new pool has the current grants
		return mysqlstore.NewTable(openPool(t, "reader:r@tcp("+m.Addr()+")/test"), mysqlstore.Options{Table: w.table})
	}
	_, claim := claimKey(t, w.store, "key")
	require.Equal(t, idempotency.StateRunning, inspectKey(t, reader(), "key").State)
	require.NoError(t, claim.Complete(ctx, answer, time.Hour))
	abandoned := w.abandonKey(t, "abandoned")
	listing, err := reader().List(ctx, idempotency.ListRequest{})
	require.NoError(t, err)
	require.Len(t, listing.Entries, 2)
	require.ErrorContains(t, reader().Forget(ctx, abandoned), "denied")
	require.ErrorContains(t, reader().Resolve(ctx, abandoned, happened), "denied")
	execStatement(t, w.db, "GRANT UPDATE, DELETE ON test."+w.table+" TO reader@'127.0.0.1'")
	require.NoError(t, reader().Resolve(ctx, abandoned, happened))
	require.NoError(t, reader().Forget(ctx, inspectKey(t, reader(), "abandoned")))
}

// All methods report faulty options and a missing table.
func TestInspectNoTable(t *testing.T) {
	t.Parallel()
	for want, table := range map[string]*mysqlstore.Table{
		"Table is":     mysqlstore.NewTable(new(sql.DB), mysqlstore.Options{Table: "a b"}),
		"call Migrate": mysqlstore.NewTable(openPool(t, sharedServer(t).DSN()), newOptions()),
	} {
		_, err := table.Inspect(t.Context(), keyOf("key"))
		require.ErrorContains(t, err, want)
		_, err = table.InspectOperation(t.Context(), keyOf("key").OperationID())
		require.ErrorContains(t, err, want)
		_, err = table.List(t.Context(), idempotency.ListRequest{})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, table.Forget(t.Context(), idempotency.Entry{}), want)
		require.ErrorContains(t, table.Resolve(t.Context(), idempotency.Entry{}, happened), want)
	}
}
