package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/internal/rowtest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func TestInspectorConformance(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]idempotency.Store{
		"one store":              openStore(t, newPath(t), sqlitestore.Options{}),
		"two stores on one file": newSubject(t).Store,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotencytest.RunInspector(t, func(*testing.T) idempotency.Store { return store })
			idempotencytest.RunResolver(t, func(*testing.T) idempotency.Store { return store })
			testservice.CheckStatus(t, store)
		})
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
		{"lease = NULL, response = x''", idempotency.ErrEntryChanged, idempotency.ErrEntryChanged},
		{"expires = 0", idempotency.ErrNoRecord, idempotency.ErrNoRecord},
		// The record is invalid, so an answer would be of no use.
		{"fingerprint = x'00'", nil, idempotency.ErrRecordInvalid},
	})
}

// A full file refuses a resolution that needs room, and the record stays unchanged. A resolution that needs no room
// succeeds.
func TestNoRoomForTheResolution(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := openStore(t, newPath(t), sqlitestore.Options{MaxBytes: 1 << 20}.WithClock(clock.now))
	claimKey(t, store, "key")
	_, claim := claimKey(t, store, "with steps")
	_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", make([]byte, 1000))
	require.NoError(t, err)
	clock.advance(2 * request.Lease)
	entry := inspectKey(t, store, "key")
	large := idempotency.Resolution{Response: &idempotency.Response{Body: make([]byte, 1<<20)}, TTL: time.Hour}
	require.ErrorIs(t, store.Resolve(t.Context(), entry, large), idempotency.ErrStoreFull)
	require.Equal(t, entry, inspectKey(t, store, "key"))
	for i := 0; ; i++ {
		_, claim, err := store.Begin(t.Context(), keyOf(fmt.Sprint(i)), request)
		if errors.Is(err, idempotency.ErrStoreFull) {
			break
		}
		require.NoError(t, err)
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Body: make([]byte, 10_000)}, time.Hour))
	}
	require.ErrorIs(t, store.Resolve(t.Context(), entry, notHappened), idempotency.ErrStoreFull)
	require.Equal(t, entry, inspectKey(t, store, "key"))
	require.NoError(t, store.Resolve(t.Context(), inspectKey(t, store, "with steps"), happened))
	require.Equal(t, idempotency.StateCompleted, inspectKey(t, store, "with steps").State)
	require.NoError(t, store.Forget(t.Context(), entry))
}

func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	rowtest.UnreadableRecords(t, newSubject(t), []string{
		"fingerprint = x'00'", "attempt = 0", "attempt = 2147483647", "lease = 0", "lease = 9223372036854775807, response = NULL",
	})
}

func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	rowtest.DamagedRecords(t, newSubject, map[string]bool{
		"user_id = 'mallory'": false, "response = x'00'": true, "response = substr(response, 1, length(response) - 1)": true,
	})
}

func TestDamagedSteps(t *testing.T) {
	t.Parallel()
	rowtest.DamagedSteps(t, newSubject(t))
}

// If the table is not strict, a column may have a value of another type. The store does not read such a record, and
// counts the record as unreadable.
func TestInspectForeignTypes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, set := range []string{"attempt = 'many'", "attempt = 1.5", "created = x'00'", "user_id = NULL", "lease = 'long'"} {
		path := newPath(t)
		execStatement(t, openConn(t, path), `CREATE TABLE idempotency_records ( /* idempotency records, version 1 */
			operation PRIMARY KEY, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps, resolved, ended)`)
		store := openStore(t, path, sqlitestore.Options{})
		claimKey(t, store, "key")
		execStatement(t, openConn(t, path), "UPDATE idempotency_records SET "+set)
		completeKey(t, store, "sound")
		entry, err := store.Inspect(ctx, keyOf("key"))
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, set)
		require.Equal(t, idempotency.Entry{Operation: keyOf("key").OperationID()}, entry, set)
		require.ErrorIs(t, store.Forget(ctx, entry), idempotency.ErrRecordInvalid, set)
		require.ErrorIs(t, store.Resolve(ctx, entry, happened), idempotency.ErrRecordInvalid, set)
		listing, err := store.List(ctx, idempotency.ListRequest{})
		require.NoError(t, err, set)
		require.Len(t, listing.Entries, 1, set)
		require.Equal(t, 1, listing.Unreadable, set)
	}
}

func TestListByNames(t *testing.T) {
	t.Parallel()
	rowtest.ListByNames(t, openStore(t, newPath(t), sqlitestore.Options{}), "sqlitestore")
}

func TestListPages(t *testing.T) {
	t.Parallel()
	s := newSubject(t)
	rowtest.ListPages(t, s.Store, func(keys []string) {
		for _, key := range keys {
			s.Set(t, key, "created = 1700000000000000")
		}
	})
}

func TestListEach(t *testing.T) {
	t.Parallel()
	rowtest.ListEach(t, openStore(t, newPath(t), sqlitestore.Options{}))
}

// A listing reads only the answers of its page, so damage to other answers does not change the listing.
func TestListReadsNoAnswers(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	completeKey(t, store, "small")
	for i := range 3 {
		_, claim := claimKey(t, store, fmt.Sprint(i))
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Body: make([]byte, 500_000)}, time.Hour))
	}
	request := idempotency.ListRequest{Order: idempotency.OldestFirst, Limit: 1}
	before, err := store.List(t.Context(), request)
	require.NoError(t, err)
	require.Greater(t, before.Totals[idempotency.StateCompleted].Bytes, int64(3*500_000))
	require.NoError(t, store.Close())
	damageAnswers(t, path)
	store = openStore(t, path, sqlitestore.Options{})
	_, err = store.Inspect(t.Context(), keyOf("2"))
	require.Error(t, err, "the answers are damaged")
	after, err := store.List(t.Context(), request)
	require.NoError(t, err)
	after.Entries[0].Remaining = before.Entries[0].Remaining
	require.Equal(t, before, after)
}

// Operators' calls fail if the store is closed or the caller's context has ended.
func TestInspectAClosedStore(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := openStore(t, path, sqlitestore.Options{})
	completeKey(t, store, "key")
	entry := inspectKey(t, store, "key")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	steps := []func(ctx context.Context) error{
		func(ctx context.Context) error { _, err := store.Inspect(ctx, keyOf("key")); return err },
		func(ctx context.Context) error { _, err := store.List(ctx, idempotency.ListRequest{}); return err },
		func(ctx context.Context) error { return store.Forget(ctx, entry) },
		func(ctx context.Context) error { return store.Resolve(ctx, entry, happened) },
	}
	for _, step := range steps {
		require.ErrorIs(t, step(over), context.Canceled)
	}
	require.Equal(t, entry.Created, inspectKey(t, store, "key").Created)
	require.NoError(t, store.Close())
	for _, step := range steps {
		require.ErrorIs(t, step(t.Context()), sqlitestore.ErrClosed)
	}
}

// damageAnswers damages the parts of answers that the file stores outside of the rows (in overflow pages).
func damageAnswers(t testing.TB, path string) {
	t.Helper()
	other := openConn(t, path)
	rows, err := other.QueryContext(t.Context(),
		"SELECT pageno, pgsize FROM dbstat WHERE name = 'idempotency_records' AND pagetype = 'overflow'")
	require.NoError(t, err)
	var offsets []int64
	for rows.Next() {
		var page, size int64
		require.NoError(t, rows.Scan(&page, &size))
		offsets = append(offsets, (page-1)*size)
	}
	require.NoError(t, rows.Close())
	require.NotEmpty(t, offsets)
	execStatement(t, other, "PRAGMA wal_checkpoint(TRUNCATE)")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	for _, offset := range offsets { // where each page has the number of the next page
		_, err = file.WriteAt([]byte{0xff, 0xff, 0xff, 0xff}, offset)
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
}
