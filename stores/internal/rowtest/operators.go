package rowtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// Change is a change of a record after an operator has read the entry as abandoned, with the errors that the operator then
// gets.
type Change = struct {
	Set             string
	Forget, Resolve error
}

// OperatorsSeeChanges checks that Forget and Resolve change a record only if the record still matches the entry. Otherwise the
// record must stay as it is.
func OperatorsSeeChanges(t *testing.T, s Subject, changes []Change) {
	t.Helper()
	for _, change := range changes {
		for name, test := range map[string]struct {
			do   func(idempotency.Entry) error
			want error
		}{
			"forget":       {func(e idempotency.Entry) error { return s.Store.Forget(t.Context(), e) }, change.Forget},
			"happened":     {func(e idempotency.Entry) error { return s.Store.Resolve(t.Context(), e, Happened) }, change.Resolve},
			"not happened": {func(e idempotency.Entry) error { return s.Store.Resolve(t.Context(), e, NotHappened) }, change.Resolve},
		} {
			key := name + " " + change.Set
			entry := s.AbandonKey(t, key)
			s.Set(t, key, change.Set)
			before := s.Dump(t, key)
			require.ErrorIs(t, test.do(entry), test.want, key)
			after := s.Dump(t, key)
			require.Equal(t, test.want == nil, after != before, key)
			if name == "forget" && test.want == nil {
				require.Empty(t, after, key)
			}
		}
	}
}

// UnreadableRecords checks that List and Inspect agree about unreadable records, and that operators can forget all unreadable
// records. The damages are assignments for completed records.
func UnreadableRecords(t *testing.T, s Subject, damages []string) {
	t.Helper()
	ctx := t.Context()
	MustComplete(t, s.Store, "sound")
	var entries []idempotency.Entry
	for i, damage := range damages {
		MustComplete(t, s.Store, damage)
		before := MustInspect(t, s.Store, damage)
		s.Set(t, damage, damage)
		entry, err := s.Store.Inspect(ctx, KeyOf(damage))
		require.ErrorIs(t, err, idempotency.ErrRecordInvalid, damage)
		require.Equal(t, before.Created, entry.Created, damage)
		require.Equal(t, before.Key, entry.Key, damage)
		RequireUnreadable(t, s.Store, i+1)
		entries = append(entries, entry)
	}
	for i, entry := range entries {
		want := error(nil)
		if entry.State == idempotency.StateRunning { // because its lease never ends
			want = idempotency.ErrInProgress
		}
		require.ErrorIs(t, s.Store.Forget(ctx, entry), want, damages[i])
	}
}

// RequireUnreadable checks that a listing has one entry and counts unreadable records that cannot be read.
func RequireUnreadable(t testing.TB, store Store, unreadable int) {
	t.Helper()
	listing, err := store.List(t.Context(), idempotency.ListRequest{States: []idempotency.State{idempotency.StateCompleted}})
	require.NoError(t, err)
	require.Equal(t, unreadable, listing.Unreadable)
	require.Len(t, listing.Entries, 1)
	require.Equal(t, map[idempotency.State]idempotency.Total{
		idempotency.StateCompleted: {Records: 1, Bytes: listing.Entries[0].Size},
	}, listing.Totals)
	entries, streamed := collectEach(t, store, idempotency.ListRequest{States: []idempotency.State{idempotency.StateCompleted}})
	require.Len(t, entries, 1)
	require.Equal(t, listing.Totals, streamed.Totals)
	require.Equal(t, unreadable, streamed.Unreadable)
}

// DamagedRecords checks that an entry has no key if the names of the record belong to another key, and no response if the stored
// response is damaged. For each damage, damages tells whether the names are correct.
func DamagedRecords(t *testing.T, newSubject func(t testing.TB) Subject, damages map[string]bool) {
	t.Helper()
	for damage, names := range damages {
		t.Run(damage, func(t *testing.T) {
			t.Parallel()
			ctx, s := t.Context(), newSubject(t)
			MustComplete(t, s.Store, "key")
			s.Set(t, "key", damage)
			for _, inspect := range []func() (idempotency.Entry, error){
				func() (idempotency.Entry, error) { return s.Store.Inspect(ctx, KeyOf("key")) },
				func() (idempotency.Entry, error) { return s.Store.InspectOperation(ctx, KeyOf("key").OperationID()) },
			} {
				entry, err := inspect()
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Equal(t, idempotency.StateCompleted, entry.State)
				require.Nil(t, entry.Response)
				require.Equal(t, names, entry.Key == KeyOf("key"))
			}
			listing, err := s.Store.List(ctx, idempotency.ListRequest{})
			require.NoError(t, err)
			require.Equal(t, names, listing.Entries[0].Key == KeyOf("key"))
			require.NoError(t, s.Store.Forget(ctx, listing.Entries[0]))
		})
	}
}

// DamagedSteps checks that forged steps are an error of Inspect and of a resolution that keeps the steps. A resolution as executed
// must succeed.
func DamagedSteps(t *testing.T, s Subject) {
	t.Helper()
	entry := s.AbandonKey(t, "key")
	s.Set(t, "key", "steps = x'09'")
	_, err := s.Store.Inspect(t.Context(), KeyOf("key"))
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.ErrorIs(t, s.Store.Resolve(t.Context(), entry, NotHappened), idempotency.ErrRecordInvalid)
	require.NoError(t, s.Store.Resolve(t.Context(), entry, Happened))
	require.Equal(t, *Happened.Response, MustReadResponse(t, s.Store, "key"))
}
