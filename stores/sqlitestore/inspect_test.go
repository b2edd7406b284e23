package sqlitestore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func TestInspectorConformance(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := open(t, path, sqlitestore.Options{})
	idempotencytest.RunInspector(t, func(*testing.T) idempotency.Store { return store })
	idempotencytest.RunResolver(t, func(*testing.T) idempotency.Store { return store })
}

// twoStores of one file have a clock that the test sets.
type twoStores struct {
	clock         *clock
	path          string
	store, second *sqlitestore.Store
}

func openTwo(t testing.TB) *twoStores {
	t.Helper()
	b := &twoStores{clock: newClock(), path: newPath(t)}
	b.store = open(t, b.path, sqlitestore.Options{}.At(b.clock.now))
	b.second = open(t, b.path, sqlitestore.Options{}.At(b.clock.now))
	return b
}

// abandoned claims a key, lets the lease lapse, and returns the entry.
func (b *twoStores) abandoned(t testing.TB, key string) idempotency.Entry {
	t.Helper()
	begun(t, b.store, key)
	b.clock.step(2 * request.Lease)
	entry := inspected(t, b.second, key)
	require.Equal(t, idempotency.StateAbandoned, entry.State)
	return entry
}

func inspected(t testing.TB, store idempotency.Inspector, key string) idempotency.Entry {
	t.Helper()
	entry, err := store.Inspect(context.Background(), keyOf(key))
	require.NoError(t, err)
	return entry
}

var (
	happened = idempotency.Resolution{
		Response: &idempotency.Response{Status: 201, Body: []byte("found"), Note: "alice: found"}, TTL: time.Hour,
	}
	notHappened = idempotency.Resolution{Operator: "bob", Reason: "no charge", TTL: time.Hour}
)

// An operation that is resolved or forgotten while another attempt takes it over is changed, or taken over.
func TestResolveOrTakeOver(t *testing.T) {
	t.Parallel()
	b := openTwo(t)
	for i := range 100 {
		key := fmt.Sprint(i)
		entry := b.abandoned(t, key)
		change := func() error { return b.second.Resolve(context.Background(), entry, happened) }
		if i%4 == 0 {
			change = func() error { return b.second.Forget(context.Background(), entry) }
		}
		var record idempotency.Record
		var claim idempotency.Claim
		var begun, changed error
		var both sync.WaitGroup
		both.Go(func() {
			record, claim, begun = b.second.Begin(context.Background(), keyOf(key), takeover)
		})
		both.Go(func() { changed = change() })
		both.Wait()
		require.NoError(t, begun)
		switch {
		case claim != nil && changed != nil:
			require.ErrorIs(t, changed, idempotency.ErrInProgress)
			require.Equal(t, 2, record.Attempt)
		case claim != nil:
			require.Zero(t, i%4, "resolved and taken over")
			require.Equal(t, 1, record.Attempt)
		default:
			require.NoError(t, changed)
			require.Equal(t, happened.Response, record.Response)
		}
		if claim != nil {
			require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
			requireReplay(t, b.second, key)
		}
	}
}

// Of operators who change one operation at once, one does.
func TestResolveTwiceAtOnce(t *testing.T) {
	t.Parallel()
	b := openTwo(t)
	for i := range 20 {
		entry := b.abandoned(t, fmt.Sprint(i))
		outcomes := make([]error, 8)
		var all sync.WaitGroup
		for n := range outcomes {
			all.Go(func() { outcomes[n] = b.second.Resolve(context.Background(), entry, notHappened) })
		}
		all.Wait()
		resolved := 0
		for _, err := range outcomes {
			if err == nil {
				resolved++
				continue
			}
			require.ErrorIs(t, err, idempotency.ErrEntryChanged)
		}
		require.Equal(t, 1, resolved)
		completed(t, b.second, fmt.Sprint(i)) // no operator keeps it
	}
}

// An entry is changed only as it was seen.
func TestChangeWhatHasChanged(t *testing.T) {
	t.Parallel()
	b := openTwo(t)
	other := foreign(t, b.path)
	row := func(key string) string {
		return one[string](t, other, "SELECT coalesce(max(quote(token) || attempt || created || coalesce(lease, '') || expires || "+
			"coalesce(response, '')), '') FROM idempotency_records WHERE key = '"+key+"'")
	}
	for change, want := range map[string]error{
		"attempt = attempt":            nil,
		"created = created + 1":        idempotency.ErrEntryChanged,
		"attempt = attempt + 1":        idempotency.ErrEntryChanged,
		"lease = NULL":                 idempotency.ErrEntryChanged,
		"lease = lease + 600000000":    idempotency.ErrInProgress,
		"lease = NULL, response = x''": idempotency.ErrEntryChanged,
		"expires = 0":                  idempotency.ErrNoRecord,
	} {
		for name, do := range map[string]func(idempotency.Entry) error{
			"forget ":  func(e idempotency.Entry) error { return b.store.Forget(t.Context(), e) },
			"resolve ": func(e idempotency.Entry) error { return b.store.Resolve(t.Context(), e, happened) },
		} {
			key := name + change
			entry := b.abandoned(t, key)
			execute(t, other, "UPDATE idempotency_records SET "+change+" WHERE key = ?", key)
			before := row(key)
			require.ErrorIs(t, do(entry), want, key)
			require.Equal(t, want == nil, row(key) != before, key)
		}
	}
}

// A file that is full refuses a resolution that needs room, and nothing is changed. It takes one that needs none.
func TestNoRoomForTheResolution(t *testing.T) {
	t.Parallel()
	clock := newClock()
	store := open(t, newPath(t), sqlitestore.Options{MaxBytes: 1 << 20}.At(clock.now))
	begun(t, store, "key")
	_, claim := begun(t, store, "with steps")
	_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), "charge", make([]byte, 1000))
	require.NoError(t, err)
	clock.step(2 * request.Lease)
	entry := inspected(t, store, "key")
	large := idempotency.Resolution{Response: &idempotency.Response{Body: make([]byte, 1<<20)}, TTL: time.Hour}
	require.ErrorIs(t, store.Resolve(t.Context(), entry, large), idempotency.ErrStoreFull)
	require.Equal(t, entry, inspected(t, store, "key"))
	for i := 0; ; i++ {
		_, claim, err := store.Begin(t.Context(), keyOf(fmt.Sprint(i)), request)
		if errors.Is(err, idempotency.ErrStoreFull) {
			break
		}
		require.NoError(t, err)
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Body: make([]byte, 10_000)}, time.Hour))
	}
	require.ErrorIs(t, store.Resolve(t.Context(), entry, notHappened), idempotency.ErrStoreFull)
	require.Equal(t, entry, inspected(t, store, "key"))
	require.NoError(t, store.Resolve(t.Context(), inspected(t, store, "with steps"), happened))
	require.Equal(t, idempotency.StateCompleted, inspected(t, store, "with steps").State)
	require.NoError(t, store.Forget(t.Context(), entry))
}

// A listing and the look at a key agree about which records cannot be read. All of them can be forgotten.
func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := newPath(t)
	store, other := open(t, path, sqlitestore.Options{}), foreign(t, path)
	completed(t, store, "sound")
	damages := []string{
		"fingerprint = 'short'", "attempt = 0", "attempt = 2147483647", "lease = 0", "lease = 9223372036854775807, response = NULL",
	}
	var entries []idempotency.Entry
	for i, damage := range damages {
		completed(t, store, damage)
		before := inspected(t, store, damage)
		execute(t, other, "UPDATE idempotency_records SET "+strings.ReplaceAll(damage, "'short'", "x'00'")+" WHERE key = ?", damage)
		entry, err := store.Inspect(ctx, keyOf(damage))
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, damage)
		require.Equal(t, before.Created, entry.Created, damage)
		require.Equal(t, before.Key, entry.Key, damage)
		listing, err := store.List(ctx, idempotency.ListRequest{States: []idempotency.State{idempotency.StateCompleted}})
		require.NoError(t, err)
		require.Equal(t, i+1, listing.Unreadable, damage)
		require.Len(t, listing.Entries, 1, damage)
		require.Equal(t, map[idempotency.State]idempotency.Total{
			idempotency.StateCompleted: {Records: 1, Bytes: listing.Entries[0].Size},
		}, listing.Totals, damage)
		entries = append(entries, entry)
	}
	for _, entry := range entries {
		want := error(nil)
		if entry.State == idempotency.StateRunning { // by its lease without end
			want = idempotency.ErrInProgress
		}
		require.ErrorIs(t, store.Forget(ctx, entry), want)
	}
}

// A record whose names are those of another key is shown without them, and an answer that is damaged is not shown.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for damage, names := range map[string]bool{
		"user_id = 'mallory'": false, "response = x'00'": true, "response = substr(response, 1, length(response) - 1)": true,
	} {
		t.Run(damage, func(t *testing.T) {
			t.Parallel()
			path := newPath(t)
			store := open(t, path, sqlitestore.Options{})
			completed(t, store, "key")
			execute(t, foreign(t, path), "UPDATE idempotency_records SET "+damage)
			for _, inspect := range []func() (idempotency.Entry, error){
				func() (idempotency.Entry, error) { return store.Inspect(ctx, keyOf("key")) },
				func() (idempotency.Entry, error) { return store.InspectDigest(ctx, keyOf("key").Digest()) },
			} {
				entry, err := inspect()
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Equal(t, idempotency.StateCompleted, entry.State)
				require.Nil(t, entry.Response)
				require.Equal(t, names, entry.Key == keyOf("key"))
			}
			listing, err := store.List(ctx, idempotency.ListRequest{})
			require.NoError(t, err)
			require.Equal(t, names, listing.Entries[0].Key == keyOf("key"))
			require.NoError(t, store.Forget(ctx, listing.Entries[0]))
		})
	}
}

// Nobody could use the answer of a record that no store has written.
func TestResolveADamagedRecord(t *testing.T) {
	t.Parallel()
	b := openTwo(t)
	entry := b.abandoned(t, "key")
	execute(t, foreign(t, b.path), "UPDATE idempotency_records SET fingerprint = x'00'")
	require.ErrorIs(t, b.store.Resolve(t.Context(), entry, happened), idempotency.ErrRecordInvalid)
	require.NoError(t, b.store.Forget(t.Context(), entry))
}

// Steps that no store has written are not shown, and cannot be kept. The operation may have happened all the same.
func TestDamagedSteps(t *testing.T) {
	t.Parallel()
	b := openTwo(t)
	entry := b.abandoned(t, "key")
	execute(t, foreign(t, b.path), "UPDATE idempotency_records SET steps = x'09'")
	_, err := b.second.Inspect(t.Context(), keyOf("key"))
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.ErrorIs(t, b.second.Resolve(t.Context(), entry, notHappened), idempotency.ErrRecordInvalid)
	require.NoError(t, b.second.Resolve(t.Context(), entry, happened))
	requireStatus(t, b.second, "key", 201)
}

// Of a record in a table that is not strict, what is of another type is not read.
func TestInspectForeignTypes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, set := range []string{"attempt = 'many'", "attempt = 1.5", "created = x'00'", "user_id = NULL", "lease = 'long'"} {
		path := newPath(t)
		execute(t, foreign(t, path), `CREATE TABLE idempotency_records ( /* idempotency records, version 1 */
			digest PRIMARY KEY, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps, resolved)`)
		store := open(t, path, sqlitestore.Options{})
		begun(t, store, "key")
		execute(t, foreign(t, path), "UPDATE idempotency_records SET "+set)
		completed(t, store, "sound")
		entry, err := store.Inspect(ctx, keyOf("key"))
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, set)
		require.Equal(t, idempotency.Entry{Digest: keyOf("key").Digest()}, entry, set)
		require.ErrorIs(t, store.Forget(ctx, entry), idempotency.ErrRecordInvalid, set)
		require.ErrorIs(t, store.Resolve(ctx, entry, happened), idempotency.ErrRecordInvalid, set)
		listing, err := store.List(ctx, idempotency.ListRequest{})
		require.NoError(t, err, set)
		require.Len(t, listing.Entries, 1, set)
		require.Equal(t, 1, listing.Unreadable, set)
	}
}

// A user's records are found whatever the name contains, and are those of no other user.
func TestListByUser(t *testing.T) {
	t.Parallel()
	store := open(t, newPath(t), sqlitestore.Options{})
	for _, user := range []string{"a", "A", "ä", "a ", "\x00", "😀", `\`, "'", "?", "?1", "`", "{state}", "{digest}"} {
		key := idempotency.Key{User: user, Endpoint: "POST /payments", ID: "1"}
		_, claim, err := store.Begin(t.Context(), key, request)
		require.NoError(t, err)
		require.NoError(t, claim.Complete(t.Context(), answer, time.Hour))
		listing, err := store.List(t.Context(), idempotency.ListRequest{User: user})
		require.NoError(t, err)
		require.Len(t, listing.Entries, 1, "%q", user)
		require.Equal(t, 1, listing.Totals[idempotency.StateCompleted].Records)
		entry := listing.Entries[0]
		require.Equal(t, key.Digest(), entry.Digest)
		if user != "\x00" { // which no text has
			require.Equal(t, key, entry.Key)
		}
		entry, err = store.Inspect(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, key, entry.Key)
	}
	listing, err := store.List(t.Context(), idempotency.ListRequest{States: []idempotency.State{"') OR ('' = '"}})
	require.NoError(t, err)
	require.Empty(t, listing.Entries)
	_, err = store.List(t.Context(), idempotency.ListRequest{Limit: -1})
	require.ErrorContains(t, err, "sqlitestore: list: a Limit of -1")
}

// A listing reads the answers of its page alone: it is the same when the others are damaged.
func TestListReadsNoAnswers(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := open(t, path, sqlitestore.Options{})
	completed(t, store, "small")
	for i := range 3 {
		_, claim := begun(t, store, fmt.Sprint(i))
		require.NoError(t, claim.Complete(t.Context(), idempotency.Response{Body: make([]byte, 500_000)}, time.Hour))
	}
	before, err := store.List(t.Context(), idempotency.ListRequest{Limit: 1})
	require.NoError(t, err)
	require.Greater(t, before.Totals[idempotency.StateCompleted].Bytes, int64(3*500_000))
	require.NoError(t, store.Close())
	cutAnswers(t, path)
	store = open(t, path, sqlitestore.Options{})
	_, err = store.Inspect(t.Context(), keyOf("2"))
	require.Error(t, err, "the answers are damaged")
	after, err := store.List(t.Context(), idempotency.ListRequest{Limit: 1})
	require.NoError(t, err)
	after.Entries[0].Remaining = before.Entries[0].Remaining
	require.Equal(t, before, after)
}

// Nothing begins once the store is closed, or the caller has gone.
func TestInspectAClosedStore(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	store := open(t, path, sqlitestore.Options{})
	completed(t, store, "key")
	entry := inspected(t, store, "key")
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
	require.Equal(t, entry.Created, inspected(t, store, "key").Created)
	require.NoError(t, store.Close())
	for _, step := range steps {
		require.ErrorIs(t, step(t.Context()), sqlitestore.ErrClosed)
	}
}

// cutAnswers damages all that a file has of answers outside of their rows.
func cutAnswers(t testing.TB, path string) {
	t.Helper()
	other := foreign(t, path)
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
	execute(t, other, "PRAGMA wal_checkpoint(TRUNCATE)")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	for _, offset := range offsets { // of the page that follows
		_, err = file.WriteAt([]byte{0xff, 0xff, 0xff, 0xff}, offset)
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
}
