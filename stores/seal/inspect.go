package seal

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

var _ idempotency.Resolver = (*Store)(nil)

// innerAs returns the inner store as a T. If the inner store is no T, innerAs returns the first T behind the inner store, or an
// error that wraps [errors.ErrUnsupported].
func innerAs[T any](s *Store) (store T, err error) {
	store, ok := idempotency.As[T](s.inner)
	if !ok {
		err = fmt.Errorf("seal: a %T is no %s: %w", s.inner, reflect.TypeFor[T]().Name(), errors.ErrUnsupported)
	}
	return store, err
}

// Inspect implements [idempotency.Inspector]. Inspect decrypts the answer, with its note, and the resolution. An answer that
// cannot be decrypted is reported as [idempotency.ErrRecordInvalid]. A resolution that cannot be decrypted is left out.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	store, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := store.Inspect(ctx, key)
	return s.openEntry(ctx, key.OperationID(), entry, err)
}

// InspectOperation implements [idempotency.Inspector], as Inspect does.
func (s *Store) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	store, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Entry{}, err
	}
	entry, err := store.InspectOperation(ctx, operation)
	return s.openEntry(ctx, operation, entry, err)
}

// openEntry decrypts the answer and the resolution of an entry of the inner store.
func (s *Store) openEntry(
	ctx context.Context, operation uuid.UUID, entry idempotency.Entry, err error,
) (idempotency.Entry, error) {
	entry.Resolved = s.openResolved(ctx, entry.Resolved, &binding{operation: operation, fingerprint: entry.Fingerprint})
	if err == nil && entry.Response != nil {
		record := idempotency.Record{Attempt: entry.Attempt, Fingerprint: entry.Fingerprint, Response: entry.Response}
		if record, err = s.openRecord(ctx, operation, entry.Fingerprint, record); err == nil {
			entry.Fingerprint, entry.Response = record.Fingerprint, record.Response
			entry.Status, entry.Note = entry.Response.Status, entry.Response.Note
		}
	}
	if err != nil {
		entry.Response, entry.Note = nil, "" // both are unauthenticated
	}
	return entry, err
}

// Resolve implements [idempotency.Resolver]. Resolve encrypts the answer, the operator and the reason, bound to the fingerprint
// in the inner store, which Resolve reads first. The sealed answer has a zero request fingerprint, because an operator does not
// know the fingerprint of the request. A resolution that is given to the inner store in plain text is refused or left out later.
//
// The inner store must show fingerprints. If the inner store digests fingerprints, as another Store of this package does, the
// answer cannot be decrypted.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	store, err := innerAs[idempotency.Resolver](s)
	if err != nil {
		return err
	}
	held, err := store.InspectOperation(ctx, entry.Operation)
	if err != nil {
		return err
	}
	key, to := s.keys[0], binding{operation: entry.Operation, attempt: entry.Attempt, fingerprint: held.Fingerprint}
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

// sealResolved encrypts resolved and writes the result to resolution: the mark of the key as the operator, and the encrypted form
// as the reason. A nil key changes nothing.
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
	sealed, err := k.encrypt(ctx, plain, k.bindResolved(of))
	resolution.Operator, resolution.Reason, resolution.At = k.operatorMark(), string(sealed), resolved.At
	return err
}

// openResolved decrypts what sealResolved has encrypted. openResolved returns nil if stored cannot be authenticated.
func (s *Store) openResolved(ctx context.Context, stored *idempotency.Resolved, of *binding) *idempotency.Resolved {
	if stored == nil {
		return nil
	}
	i := slices.IndexFunc(s.keys, func(k *sealer) bool { return k != nil && k.operatorMark() == stored.Operator })
	if i < 0 {
		if s.acceptsPlain && !strings.HasPrefix(stored.Operator, markPrefix) {
			return stored
		}
		return nil
	}
	plain, err := s.keys[i].decrypt(ctx, []byte(stored.Reason), s.keys[i].bindResolved(of), "resolution")
	if err != nil {
		return nil
	}
	opened := new(idempotency.Resolved)
	if opened.UnmarshalBinary(plain) != nil {
		return nil
	}
	return opened
}

// operatorMark returns the mark that a sealed resolution has as its operator.
func (k *sealer) operatorMark() string { return markPrefix + k.keyID }

// bindResolved returns the operation of a resolution as associated data. As a checkpoint does, a resolution belongs to all attempts
// at the operation.
func (k *sealer) bindResolved(of *binding) []byte {
	b := make([]byte, 0, 160)
	b = append(b, "idempotency/seal/1 resolved\n"...)
	b = append(b, of.operation[:]...)
	b = append(b, of.fingerprint[:]...)
	return append(b, k.keyID...)
}

// Forget implements [idempotency.Inspector].
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	store, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return err
	}
	return store.Forget(ctx, entry)
}

// List implements [idempotency.Inspector]. List decrypts nothing. Each Status is that of the inner store, and the notes
// of sealed answers are left out, also for ListRequest.Each.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	store, err := innerAs[idempotency.Inspector](s)
	if err != nil {
		return idempotency.Listing{}, err
	}
	if s.acceptsPlain {
		return store.List(ctx, request)
	}
	if each := request.Each; each != nil {
		request.Each = func(entry idempotency.Entry) error {
			entry.Note = "" // unauthenticated
			return each(entry)
		}
	}
	listing, err := store.List(ctx, request)
	for i := range listing.Entries {
		listing.Entries[i].Note = ""
	}
	return listing, err
}
