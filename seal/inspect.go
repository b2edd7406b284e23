package seal

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Resolver = (*Store)(nil)

// inner returns the inner store, or the first one behind it, as what it must be for a method.
func inner[T any](s *Store) (store T, err error) {
	store, ok := idempotency.As[T](s.inner)
	if !ok {
		err = fmt.Errorf("seal: a %T is no %s: %w", s.inner, reflect.TypeFor[T]().Name(), errors.ErrUnsupported)
	}
	return store, err
}

// Inspect implements [idempotency.Inspector]. It opens the answer, and the note with it. An answer that cannot be opened is
// reported as [idempotency.ErrRecordInvalid]. A note of an [idempotency.Resolution] that cannot be opened is left out: nothing
// vouches for it.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	store, err := inner[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := store.Inspect(ctx, key)
	return s.openEntry(ctx, key.Digest(), entry, err)
}

// InspectDigest implements [idempotency.Resolver], as Inspect does.
func (s *Store) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (idempotency.Entry, error) {
	store, err := inner[idempotency.Resolver](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := store.InspectDigest(ctx, digest)
	return s.openEntry(ctx, digest, entry, err)
}

// openEntry returns an entry of the inner store with what is in its answer and in its note.
func (s *Store) openEntry(
	ctx context.Context, digest [sha256.Size]byte, entry idempotency.Entry, err error,
) (idempotency.Entry, error) {
	switch {
	case err != nil:
	case entry.Response != nil:
		record := idempotency.Record{Attempt: entry.Attempt, Fingerprint: entry.Fingerprint, Response: entry.Response}
		if record, err = s.reveal(ctx, digest, entry.Fingerprint, record); err == nil {
			entry.Fingerprint, entry.Response = record.Fingerprint, record.Response
			entry.Status, entry.Note = entry.Response.Status, entry.Response.Note
		}
	case entry.Note != "":
		of := binding{digest: digest, fingerprint: entry.Fingerprint}
		note, _ := s.openStep(ctx, []byte(entry.Note), &of, idempotency.ResolutionNote)
		entry.Note = string(note)
	}
	if err != nil {
		entry.Response, entry.Note = nil, "" // nothing vouches for them
	}
	return entry, err
}

// Resolve implements [idempotency.Resolver]. It seals the answer, or the note, and gives it to the inner store. What somebody
// gives to the inner store in the clear is refused later. Resolve asks that store for the fingerprint that they are bound to.
// The plain fingerprint of the request is not known: what stands for it in the answer is zero. If the inner store hides
// fingerprints in its turn, as another Store of this package does, nobody can open the answer.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	store, err := inner[idempotency.Resolver](s)
	if err != nil {
		return err
	}
	held, err := store.InspectDigest(ctx, entry.Digest)
	if err != nil {
		return err
	}
	key, to := s.keys[0], binding{digest: entry.Digest, attempt: entry.Attempt, fingerprint: held.Fingerprint}
	if resp := resolution.Response; resp != nil {
		sealed, err := key.sealAnswer(ctx, idempotency.Fingerprint{}, *resp, to)
		if err != nil {
			return err
		}
		resolution.Response = &sealed
	} else {
		note, err := key.sealStep(ctx, []byte(resolution.Note), &to, idempotency.ResolutionNote)
		if err != nil {
			return err
		}
		resolution.Note = string(note)
	}
	return store.Resolve(ctx, entry, resolution)
}

// Forget implements [idempotency.Inspector].
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	store, err := inner[idempotency.Inspector](s)
	if err != nil {
		return err
	}
	return store.Forget(ctx, entry)
}

// List implements [idempotency.Inspector]. It opens nothing. Each Status is as the inner store has it, and the notes of
// sealed answers are left out.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	store, err := inner[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Listing{}, err
	}
	listing, err := store.List(ctx, request)
	for i := range listing.Entries {
		if !s.clear {
			listing.Entries[i].Note = "" // nothing vouches for it
		}
	}
	return listing, err
}
