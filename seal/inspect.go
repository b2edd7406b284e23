package seal

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Inspector = (*Store)(nil)

func (s *Store) inspector() (idempotency.Inspector, error) {
	if inner, ok := s.inner.(idempotency.Inspector); ok {
		return inner, nil
	}
	return nil, fmt.Errorf("seal: a %T is no Inspector: %w", s.inner, errors.ErrUnsupported)
}

// Inspect implements [idempotency.Inspector]. It opens the answer, and the note with it. An answer that cannot be opened
// is reported as [idempotency.ErrRecordInvalid].
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	inner, err := s.inspector()
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := inner.Inspect(ctx, key)
	if err == nil && entry.Response != nil {
		entry, err = s.openEntry(ctx, key, entry)
	}
	if err != nil {
		entry.Response, entry.Note = nil, "" // nothing vouches for them
	}
	return entry, err
}

// openEntry returns an entry with what is in its answer.
func (s *Store) openEntry(
	ctx context.Context, key idempotency.Key, entry idempotency.Entry,
) (idempotency.Entry, error) {
	opened, err := s.reveal(ctx, key.Digest(), entry.Fingerprint, idempotency.Record{
		Attempt: entry.Attempt, Fingerprint: entry.Fingerprint, Response: entry.Response,
	})
	if err != nil {
		return entry, err
	}
	entry.Fingerprint, entry.Response = opened.Fingerprint, opened.Response
	entry.Status, entry.Note = entry.Response.Status, entry.Response.Note
	return entry, nil
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
