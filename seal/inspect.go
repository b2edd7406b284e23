package seal

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Resolver = (*Store)(nil)

func (s *Store) inspector() (idempotency.Inspector, error) {
	if inner, ok := s.inner.(idempotency.Inspector); ok {
		return inner, nil
	}
	return nil, fmt.Errorf("seal: a %T is no Inspector: %w", s.inner, errors.ErrUnsupported)
}

func (s *Store) resolver() (idempotency.Resolver, error) {
	if inner, ok := s.inner.(idempotency.Resolver); ok {
		return inner, nil
	}
	return nil, fmt.Errorf("seal: a %T is no Resolver: %w", s.inner, errors.ErrUnsupported)
}

// Inspect implements [idempotency.Inspector]. It opens the answer, and the note with it. An answer that cannot be opened is
// reported as [idempotency.ErrRecordInvalid]. A note of an [idempotency.Resolution] that cannot be opened is left out: nothing
// vouches for it.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	inner, err := s.inspector()
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := inner.Inspect(ctx, key)
	return s.openEntry(ctx, key.Digest(), entry, err)
}

// InspectDigest implements [idempotency.Resolver], as Inspect does.
func (s *Store) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (idempotency.Entry, error) {
	inner, err := s.resolver()
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := inner.InspectDigest(ctx, digest)
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

// Resolve implements [idempotency.Resolver]. An answer that was given to the inner store itself would be in the clear, and so
// be refused. It seals the answer, or the note. It asks the inner store for the fingerprint
// that they are bound to. The plain fingerprint of the request is not known: what stands for it in the answer is zero. If
// the inner store hides fingerprints in its turn, as another Store of this package does, nobody can open the answer.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	inner, err := s.resolver()
	if err != nil {
		return err
	}
	held, err := inner.InspectDigest(ctx, entry.Digest)
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
	return inner.Resolve(ctx, entry, resolution)
}

// Forget implements [idempotency.Inspector].
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	inner, err := s.inspector()
	if err != nil {
		return err
	}
	return inner.Forget(ctx, entry)
}

// List implements [idempotency.Inspector]. It opens nothing. Each Status is as the inner store has it, and the notes of
// sealed answers are left out.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	inner, err := s.inspector()
	if err != nil {
		return idempotency.Listing{}, err
	}
	listing, err := inner.List(ctx, request)
	for i := range listing.Entries {
		if !s.clear {
			listing.Entries[i].Note = "" // nothing vouches for it
		}
	}
	return listing, err
}
