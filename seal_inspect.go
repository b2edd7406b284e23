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
	if err != nil {
		return s.withoutAnswer(entry), err
	}
	if entry.State != StateCompleted || entry.Response == nil {
		return s.withoutAnswer(entry), nil
	}
	// Whoever writes to the inner store may have put a line before what is sealed that the inner store took for a note.
	if entry.Note != "" && isSealed(entry.Response) {
		return s.withoutAnswer(entry), fmt.Errorf("%w: sealed answer, with a note in the clear", ErrRecordInvalid)
	}
	record := Record{
		Operation: entry.Operation, Attempt: entry.Attempt, Fingerprint: entry.Fingerprint, Response: entry.Response,
	}
	seen, _, err := s.reveal(ctx, key.Digest(), entry.Fingerprint, record)
	if err != nil {
		return s.withoutAnswer(entry), err
	}
	return s.withAnswer(entry, seen), nil
}

// withAnswer returns an entry with what is in the answer.
func (s *sealedStore) withAnswer(entry Entry, opened Record) Entry {
	shown := s.withoutAnswer(entry)
	shown.Status, shown.Fingerprint, shown.Response = opened.Response.Status, opened.Fingerprint, opened.Response
	if isSealed(entry.Response) {
		shown.Response, shown.Note = opened.Response.CutNote()
	}
	return shown
}

// withoutAnswer returns an entry without its response and, if answers in the clear are refused, without the note that
// nothing vouches for.
func (s *sealedStore) withoutAnswer(entry Entry) Entry {
	entry.Response = nil
	if !s.clear {
		entry.Note = ""
	}
	return entry
}

// Forget implements [Inspector].
func (s *sealedStore) Forget(ctx context.Context, entry Entry) error {
	if inner, ok := s.inner.(Inspector); ok {
		return inner.Forget(ctx, entry)
	}
	return noInspector(s.inner)
}

// List implements [Inspector]. It opens nothing: each Status is as the inner store has it, and there are no notes of sealed
// answers.
func (s *sealedStore) List(ctx context.Context, request ListRequest) (Listing, error) {
	inner, ok := s.inner.(Inspector)
	if !ok {
		return Listing{}, noInspector(s.inner)
	}
	listing, err := inner.List(ctx, request)
	for i, entry := range listing.Entries {
		listing.Entries[i] = s.withoutAnswer(entry)
	}
	return listing, err
}
