package idempotency

import (
	"context"
	"errors"
	"fmt"
)

var _ Inspector = (*sealedStore)(nil)

// noInspector is the error of a store in front of one that shows nothing.
func noInspector(inner Store) error {
	return fmt.Errorf("idempotency: a %T is no Inspector: %w", inner, errors.ErrUnsupported)
}

// Inspect implements [Inspector]. It opens the answer, and the note with it.
func (s *sealedStore) Inspect(ctx context.Context, key Key) (Entry, error) {
	inner, ok := s.inner.(Inspector)
	if !ok {
		return Entry{}, noInspector(s.inner)
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
func (s *sealedStore) openEntry(ctx context.Context, key Key, entry Entry) (Entry, error) {
	sealed := isSealed(entry.Response)
	if sealed && entry.Note != "" { // a line before what is sealed, which the inner store took for one
		return entry, fmt.Errorf("%w: sealed answer, with a note in the clear", ErrRecordInvalid)
	}
	opened, _, err := s.reveal(ctx, key.Digest(), entry.Fingerprint, Record{
		Attempt: entry.Attempt, Fingerprint: entry.Fingerprint, Response: entry.Response,
	})
	if err != nil {
		return entry, err
	}
	entry.Status, entry.Fingerprint, entry.Response = opened.Response.Status, opened.Fingerprint, opened.Response
	switch {
	case sealed:
		entry.Response, entry.Note = opened.Response.CutNote()
	case !s.clear:
		entry.Note = ""
	}
	return entry, nil
}

// Forget implements [Inspector].
func (s *sealedStore) Forget(ctx context.Context, entry Entry) error {
	if inner, ok := s.inner.(Inspector); ok {
		return inner.Forget(ctx, entry)
	}
	return noInspector(s.inner)
}

// List implements [Inspector]. It opens nothing. Each Status is as the inner store has it, and the notes of sealed
// answers are left out.
func (s *sealedStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	inner, ok := s.inner.(Inspector)
	if !ok {
		return Listing{}, noInspector(s.inner)
	}
	listing, err := inner.List(ctx, request)
	for i := range listing.Entries {
		if !s.clear {
			listing.Entries[i].Note = "" // nothing vouches for it
		}
	}
	return listing, err
}
