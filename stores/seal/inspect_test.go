package seal_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// secret is an answer with a note.
func secret() idempotency.Response {
	return idempotency.Response{Status: 201, Header: "X-Token: s3cret\n", Body: []byte("pin 1234"), Note: "charge ch_1"}
}

// An answer is opened for who has the key. Nobody else is shown any of it, but all that is not secret.
func TestInspect(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	store := testservice.MustSeal(t, inner, testservice.Sealing("new", "old"))
	testservice.MustComplete(t, testservice.MustSeal(t, inner, testservice.Sealing("old")), testservice.NumberedKey(0), secret())

	entry := testservice.MustInspect(t, store, testservice.NumberedKey(0))
	require.Equal(t, "charge ch_1", entry.Note)
	want := secret()
	require.Equal(t, &want, entry.Response)
	require.Equal(t, testservice.AttemptFor(0).Fingerprint, entry.Fingerprint)

	clear := testservice.MustInspect(t, inner, testservice.NumberedKey(0))
	require.NotContains(t, string(clear.Response.Body), "1234")
	require.Empty(t, clear.Note)
	require.Equal(t, clear.Size, entry.Size)
	require.Empty(t, testservice.MustList(t, store).Entries[0].Note)

	other, err := testservice.MustSeal(t, inner, testservice.Sealing("unknown")).Inspect(t.Context(), testservice.NumberedKey(0))
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.Nil(t, other.Response)
	require.Equal(t, idempotency.StateCompleted, other.State)
	require.Equal(t, entry.Operation, other.Operation)
	require.Equal(t, entry.Created, other.Created)
	require.NoError(t, testservice.MustSeal(t, inner, testservice.Sealing("unknown")).Forget(t.Context(), other))
	_, err = store.Inspect(t.Context(), testservice.NumberedKey(0))
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
}

// Whoever writes to the inner store cannot have anything shown that was not sealed.
func TestInspectForgery(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	testservice.MustComplete(t, testservice.MustSeal(t, inner, testservice.Sealing("key")), testservice.NumberedKey(0), secret())
	stored := testservice.MustRead(t, inner, testservice.NumberedKey(0)).Response
	mark, sealed := stored.Header, stored.Body
	require.Equal(t, idempotency.Fields(":sealed/1 key\n"), mark)

	for name, forged := range map[string]struct {
		resp       idempotency.Response
		allowClear bool
		fails      bool
	}{
		"moved to another key":                {idempotency.Response{Status: 201, Header: mark, Body: sealed}, false, true},
		"in the clear":                        {secret(), false, true},
		"in the clear, which is allowed":      {secret(), true, false},
		"sealed, with a note in the clear":    {idempotency.Response{Status: 201, Header: mark, Body: sealed, Note: "forged"}, true, true},
		"sealed, behind a line in the clear":  {idempotency.Response{Status: 201, Header: ": forged\n" + mark, Body: sealed}, false, true},
		"sealed, with a header in the clear":  {idempotency.Response{Status: 201, Header: mark + "A: b\n", Body: sealed}, true, true},
		"omitted, with a note in the clear":   {idempotency.Response{Status: 299, Omitted: true, Note: "forged"}, false, false},
		"of another key's ID":                 {idempotency.Response{Status: 201, Header: ":sealed/1 yek\n", Body: sealed}, false, true},
		"cut":                                 {idempotency.Response{Status: 201, Header: mark, Body: sealed[:len(sealed)-1]}, false, true},
		"nothing that is sealed":              {idempotency.Response{Status: 201, Header: mark}, true, true},
		"another status, with the same bytes": {idempotency.Response{Status: 200, Header: mark, Body: sealed}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			key := idempotency.Key{User: "alice", ID: name}
			testservice.MustComplete(t, inner, key, forged.resp)
			opts := testservice.Sealing("key")
			if forged.allowClear {
				opts = allowingClear(opts)
			}
			entry, err := testservice.MustSeal(t, inner, opts).Inspect(t.Context(), key)
			require.Equal(t, idempotency.StateCompleted, entry.State)
			switch {
			case forged.fails:
				require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
				require.Nil(t, entry.Response)
				require.Empty(t, entry.Note)
			case forged.allowClear:
				require.NoError(t, err)
				require.Equal(t, "charge ch_1", entry.Note)
				require.Equal(t, "pin 1234", string(entry.Response.Body))
			default:
				require.NoError(t, err)
				require.Equal(t, &idempotency.Response{Omitted: true}, entry.Response)
				require.Zero(t, entry.Status)
				require.Empty(t, entry.Note)
			}
		})
	}
}

// A note that was not sealed is listed only if the store accepts plain answers, in the entries and by Each.
func TestListNotes(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	testservice.MustComplete(t, inner, testservice.NumberedKey(0), secret())
	for want, options := range map[string]seal.Options{
		"": testservice.Sealing("key"), "charge ch_1": allowingClear(testservice.Sealing("key")),
	} {
		store := testservice.MustSeal(t, inner, options)
		require.Equal(t, want, testservice.MustList(t, store).Entries[0].Note)
		var notes []string
		_, err := store.List(t.Context(), idempotency.ListRequest{Each: func(entry idempotency.Entry) error {
			notes = append(notes, entry.Note)
			return nil
		}})
		require.NoError(t, err)
		require.Equal(t, []string{want}, notes)
	}
}

// A store in front of one that shows nothing says so.
func TestNoInspectorBehind(t *testing.T) {
	t.Parallel()
	inner := struct{ idempotency.Store }{idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	store := testservice.MustSeal(t, inner, testservice.Sealing("key"))
	_, err := store.Inspect(t.Context(), testservice.NumberedKey(0))
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorIs(t, store.Forget(t.Context(), idempotency.Entry{}), errors.ErrUnsupported)
	_, err = store.List(t.Context(), idempotency.ListRequest{})
	require.ErrorIs(t, err, errors.ErrUnsupported)
}

// What was begun and not completed is shown by a sealed store as by the inner one.
func TestInspectUnfinished(t *testing.T) {
	t.Parallel()
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	store := testservice.MustSeal(t, inner, testservice.Sealing("key"))
	claim := testservice.MustClaim(t, store, testservice.NumberedKey(0), testservice.AttemptFor(time.Hour))
	require.Equal(t, idempotency.StateRunning, testservice.MustInspect(t, store, testservice.NumberedKey(0)).State)
	require.NoError(t, claim.Release(t.Context(), idempotency.Release{TTL: time.Hour}))
	require.Equal(t, idempotency.StateReleased, testservice.MustInspect(t, store, testservice.NumberedKey(0)).State)
}

// A note beside what is sealed is none: nothing vouches for it, though all else is as it was sealed.
func TestInspectNoteInTheClear(t *testing.T) {
	t.Parallel()
	inner := notingStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	store := testservice.MustSeal(t, inner, allowingClear(testservice.Sealing("key")))
	testservice.MustComplete(t, store, testservice.NumberedKey(0), secret())
	entry, err := store.Inspect(t.Context(), testservice.NumberedKey(0))
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
	require.Empty(t, entry.Note)
	require.Nil(t, entry.Response)
}

// notingStore is a store to which somebody has added a note to every record.
type notingStore struct{ *idempotency.MemoryStore }

func (s notingStore) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	entry, err := s.MemoryStore.Inspect(ctx, key)
	noted := *entry.Response
	noted.Note, entry.Note, entry.Response = "forged", "forged", &noted
	return entry, err
}

// A resolution is shown as it was sealed, and nothing that somebody else has put in its place.
func TestForgedResolutions(t *testing.T) {
	t.Parallel()
	ctx, opts := t.Context(), testservice.Sealing("new", "old")
	inner := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	store := testservice.MustSeal(t, inner, opts)
	abandoned := func(n int) idempotency.Key {
		key, request := testservice.NumberedKey(n), testservice.AttemptFor(time.Hour)
		request.Lease = time.Millisecond
		testservice.MustClaim(t, store, key, request)
		testservice.Until(t, func() bool { return testservice.MustInspect(t, store, key).State == idempotency.StateAbandoned })
		return key
	}
	at := time.Date(2026, 11, 21, 10, 5, 29, 0, time.UTC)
	genuine := abandoned(0)
	resolution := idempotency.Resolution{Operator: "alice", Reason: "case 17", At: at, TTL: time.Hour}
	require.NoError(t, store.Resolve(ctx, testservice.MustInspect(t, store, genuine), resolution))
	want := &idempotency.Resolved{Attempt: 1, At: at, Operator: "alice", Reason: "case 17"}
	stored := testservice.MustInspect(t, inner, genuine).Resolved
	require.NotContains(t, stored.Operator+stored.Reason, "alice")
	require.NotContains(t, stored.Operator+stored.Reason, "case 17")
	require.Equal(t, want, testservice.MustInspect(t, store, genuine).Resolved)
	require.Equal(t, want, testservice.MustInspect(t, testservice.MustSeal(t, inner, testservice.Sealing("old", "new")), genuine).Resolved)
	require.Nil(t, testservice.MustInspect(t, testservice.MustSeal(t, inner, testservice.Sealing("old")), genuine).Resolved)
	testservice.MustClaim(t, store, genuine, testservice.AttemptFor(time.Hour))
	require.Equal(t, want, testservice.MustInspect(t, store, genuine).Resolved, "of an earlier attempt")

	for name, forged := range map[string]struct {
		operator, reason string
		inTheClear       bool // shown where AllowClear is set
	}{
		"of another operation":   {stored.Operator, stored.Reason, false},
		"cut":                    {stored.Operator, stored.Reason[1:], false},
		"nothing that is sealed": {stored.Operator, "", false},
		"of an unknown key":      {":sealed/1 none", stored.Reason, false},
		"in the clear":           {"mallory", "so be it", true},
		"of nobody":              {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			key := abandoned(1 + len(testservice.MustList(t, inner).Entries))
			forgery := idempotency.Resolution{Operator: forged.operator, Reason: forged.reason, At: at, TTL: time.Hour}
			require.NoError(t, inner.Resolve(ctx, testservice.MustInspect(t, inner, key), forgery))
			entry := testservice.MustInspect(t, store, key)
			require.Equal(t, idempotency.StateReleased, entry.State)
			require.Nil(t, entry.Resolved)
			lenient := testservice.MustInspect(t, testservice.MustSeal(t, inner, allowingClear(opts)), key).Resolved
			if forged.inTheClear {
				require.Equal(t, &idempotency.Resolved{Attempt: 1, At: at, Operator: forged.operator, Reason: forged.reason}, lenient)
				return
			}
			require.Nil(t, lenient)
		})
	}
}
