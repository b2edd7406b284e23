package seal

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

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

// Inspect implements [idempotency.Inspector]. It opens the answer, with its note, and the resolution. An answer that cannot be
// opened is reported as [idempotency.ErrRecordInvalid]. A resolution that cannot be opened is left out: nothing vouches for
// it.
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

// openEntry returns an entry of the inner store with what is in its answer and in its resolution.
func (s *Store) openEntry(
	ctx context.Context, digest [sha256.Size]byte, entry idempotency.Entry, err error,
) (idempotency.Entry, error) {
	entry.Resolved = s.openResolved(ctx, entry.Resolved, &binding{digest: digest, fingerprint: entry.Fingerprint})
	if err == nil && entry.Response != nil {
		record := idempotency.Record{Attempt: entry.Attempt, Fingerprint: entry.Fingerprint, Response: entry.Response}
		if record, err = s.reveal(ctx, digest, entry.Fingerprint, record); err == nil {
			entry.Fingerprint, entry.Response = record.Fingerprint, record.Response
			entry.Status, entry.Note = entry.Response.Status, entry.Response.Note
		}
	}
	if err != nil {
		entry.Response, entry.Note = nil, "" // nothing vouches for them
	}
	return entry, err
}

// Resolve implements [idempotency.Resolver]. It seals the answer, and who has resolved the operation, and gives both to the
// inner store. What somebody gives to the inner store in the clear is refused later, or left out. Resolve asks that store for
// the fingerprint that they are bound to. The plain fingerprint of the request is not known: what stands for it in the
// answer is zero. If the inner store hides fingerprints in its turn, as another Store of this package does, nobody can open
// the answer.
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
	if err := key.sealResolved(ctx, resolution.Resolved(entry), &to, &resolution); err != nil {
		return err
	}
	if resp := resolution.Response; resp != nil {
		sealed, err := key.sealAnswer(ctx, idempotency.Fingerprint{}, *resp, to)
		if err != nil {
			return err
		}
		resolution.Response = &sealed
	}
	return store.Resolve(ctx, entry, resolution)
}

// sealResolved has a resolution say resolved in encrypted form: the mark of the key stands for the operator, and the rest for
// the reason. A nil key leaves both in the clear.
func (k *sealer) sealResolved(
	ctx context.Context, resolved idempotency.Resolved, of *binding, resolution *idempotency.Resolution,
) error {
	if k == nil {
		return nil
	}
	plain, err := resolved.MarshalBinary()
	if err != nil {
		return err
	}
	sealed, err := k.seal(ctx, plain, k.bindResolved(of))
	resolution.Operator, resolution.Reason, resolution.At = k.operator(), string(sealed), resolved.At
	return err
}

// openResolved returns what sealResolved was given. It returns nil if nothing vouches for stored.
func (s *Store) openResolved(ctx context.Context, stored *idempotency.Resolved, of *binding) *idempotency.Resolved {
	if stored == nil {
		return nil
	}
	i := slices.IndexFunc(s.keys, func(k *sealer) bool { return k != nil && k.operator() == stored.Operator })
	if i < 0 {
		if s.clear && !strings.HasPrefix(stored.Operator, magic) {
			return stored
		}
		return nil
	}
	plain, err := s.keys[i].open(ctx, []byte(stored.Reason), s.keys[i].bindResolved(of), "resolution")
	if err != nil {
		return nil
	}
	opened := new(idempotency.Resolved)
	if opened.UnmarshalBinary(plain) != nil {
		return nil
	}
	return opened
}

// operator returns what stands for the operator of a sealed resolution.
func (k *sealer) operator() string { return magic + k.id }

// bindResolved returns what a sealed resolution belongs to as associated data: to every attempt at the operation, as a sealed
// checkpoint does.
func (k *sealer) bindResolved(of *binding) []byte {
	b := make([]byte, 0, 160)
	b = append(b, "idempotency/seal/1 resolved\n"...)
	b = append(b, of.digest[:]...)
	b = append(b, of.fingerprint[:]...)
	return append(b, k.id...)
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
