package idempotency

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"
)

// SealOptions are the settings of [Seal].
type SealOptions struct {
	// Keys are the keys in use. The first one seals, and each of them opens.
	//
	// To rotate, add the new key behind the old one in every process, so that all can open what it seals. Then put the new
	// key first. Remove the old key a TTL after the last process has changed: no answer is sealed with it any more. An
	// answer that was sealed with a missing key is refused with [ErrRecordInvalid]. An operation that was begun under a
	// missing key, has failed ever since and is still being retried is refused with [ErrKeyReused]. The number of answers
	// that a key may seal (see [SealKey]) counts those of all processes together.
	Keys []SealKey

	// AllowClear also replays answers that were stored before the store was sealed. By default they are refused with
	// [ErrRecordInvalid]. While AllowClear is set, anybody who can write to the inner store can forge an answer. So unset
	// it a TTL after the last process has begun to seal.
	AllowClear bool

	// OpenOnly opens sealed answers, and goes on to store new ones in the clear. It includes AllowClear. It is the first
	// of two steps by which sealing is rolled in where processes are replaced one by one: at first OpenOnly, and then
	// AllowClear. Without it, a process that does not seal yet takes the repetition of a sealed request for another
	// request, and refuses it with [ErrKeyReused].
	OpenOnly bool
}

// Seal returns a store that keeps its records in the inner store, where answers are encrypted and authenticated. Each
// answer is bound to its key, attempt, status and fingerprint. The error reports every fault of opts.
//
// Header, trailer and body of an answer are secret. The fingerprint of a request is stored as a keyed digest
// (HMAC-SHA256). So nobody can confirm a guessed body by it, or see that two requests have equal bodies. These stay in
// the clear: status, attempt, times, the size of the answer, the ID of the sealing key, and the digest of
// the [Key]. The inner store gets the Key itself, and may keep it, as PostgreSQL does.
//
// Somebody who can write to the inner store cannot make up, alter or move an answer. Begin reports an answer that
// cannot be opened as [ErrRecordInvalid], and the handler does not run then, whatever the options. The same person can
// still
//
//   - delete a record or mark it as released, so that the operation runs again;
//   - mark a record as running, so that its operation is in progress;
//   - bring back an older answer to the same request, with the same number of attempts;
//   - mark an answer as one whose body was not kept, so that it is not replayable. A store without room sets this mark
//     too. The status of such an answer is reported as zero, because nothing vouches for it.
//
// The error of Begin or Complete wraps that of the [Cipher]. If the Cipher cannot decrypt, Begin also reports
// ErrRecordInvalid. It does so even if the reason may pass, such as a service that is down: an operation that is
// completed must not run again. If the Cipher cannot encrypt, Complete fails and may be repeated. But a claim without a
// lease is rolled back, and the error is [ErrRolledBack].
//
// The sealed store does all that the inner store does as a [Store] and as an [Inspector]. Inspect opens the answer, and
// reports an answer that cannot be opened as ErrRecordInvalid. Call other methods, such as Check, on the inner store.
func Seal(inner Store, opts SealOptions) (Store, error) {
	err := opts.validate()
	if inner == nil {
		err = errors.Join(errors.New("idempotency: Store is nil"), err)
	}
	if err != nil {
		return nil, err
	}
	s := &sealedStore{inner: inner, clear: opts.AllowClear || opts.OpenOnly}
	for _, key := range opts.Keys {
		k, err := newSealKey(key)
		if err != nil {
			return nil, fmt.Errorf("idempotency: key %q: %w", key.ID, err)
		}
		s.keys = append(s.keys, k)
	}
	switch {
	case opts.OpenOnly:
		s.keys = append([]*sealKey{nil}, s.keys...)
	case opts.AllowClear:
		s.keys = append(s.keys, nil)
	}
	return s, nil
}

// sealedStore implements [Store].
type sealedStore struct {
	inner Store
	keys  []*sealKey // the first one seals; nil stands for the clear
	clear bool       // clear answers are replayed
}

// Unwrap returns the inner store, which says whether the claims are transactions.
func (s *sealedStore) Unwrap() Store { return s.inner }

// Immediate implements [Immediate]: a [Cipher] may wait.
func (s *sealedStore) Immediate() bool {
	for _, k := range s.keys {
		if k != nil && k.local == nil {
			return false
		}
	}
	return isImmediate(s.inner)
}

// Begin implements [Store].
func (s *sealedStore) Begin(ctx context.Context, key Key, request ClaimRequest) (Record, Claim, error) {
	digest, fp := key.Digest(), request.Fingerprint
	request.Fingerprint = s.keys[0].fingerprint(digest, fp)
	record, claim, err := s.inner.Begin(ctx, key, request)
	// The inner store grants an operation that was begun under another key by the fingerprint that it has of it. If the
	// record expires before that question, the store begins a new operation with that fingerprint. This does no harm: the
	// same request had it a moment before, and its answer is sealed with the first key.
	for err == nil && claim == nil && record.Fingerprint != request.Fingerprint && idle(&record) &&
		s.same(digest, fp, record.Fingerprint) {
		request.Fingerprint = record.Fingerprint
		record, claim, err = s.inner.Begin(ctx, key, request)
	}
	switch {
	case err != nil:
		return record, claim, err
	case claim == nil:
		return s.reveal(ctx, digest, fp, record)
	}
	c := &sealedClaim{Claim: claim, key: s.keys[0], noLease: record.NoLease, request: fp, to: binding{
		digest: digest, attempt: record.Attempt, fingerprint: request.Fingerprint,
	}}
	record.Fingerprint = fp
	return record, c, nil
}

// idle reports whether nobody runs the operation, and nobody has completed it.
func idle(record *Record) bool {
	return record.Response == nil && record.LeaseLeft <= 0 && !record.NoLease
}

// same reports whether stored is the fingerprint fp of a request, under any key.
func (s *sealedStore) same(digest [sha256.Size]byte, fp, stored Fingerprint) bool {
	for _, k := range s.keys {
		if k.fingerprint(digest, fp) == stored {
			return true
		}
	}
	return false
}

// reveal returns the record that holds a key as a request with fingerprint fp is to see it.
func (s *sealedStore) reveal(
	ctx context.Context, digest [sha256.Size]byte, fp Fingerprint, record Record,
) (Record, Claim, error) {
	resp := record.Response
	switch {
	case resp == nil:
	case isSealed(resp):
		err := s.open(ctx, digest, &record)
		return record, nil, err
	case s.clear:
	case resp.Omitted:
		record.Response = &Response{Omitted: true} // the rest may be forged
	default:
		return record, nil, fmt.Errorf("%w: the answer is not sealed", ErrRecordInvalid)
	}
	if s.same(digest, fp, record.Fingerprint) {
		record.Fingerprint = fp
	}
	return record, nil, nil
}

// isSealed reports whether a response is a sealed one, by whatever key.
func isSealed(resp *Response) bool {
	return !resp.Omitted && strings.HasPrefix(string(resp.Header), sealMagic)
}

// open replaces the sealed response of a record by what is in it, and the fingerprint by that of the request that was
// answered.
func (s *sealedStore) open(ctx context.Context, digest [sha256.Size]byte, record *Record) error {
	sealed := record.Response
	k := s.sealer(sealed.Header)
	switch {
	case k == nil:
		return fmt.Errorf("%w: sealed answer, key unknown", ErrRecordInvalid)
	case sealed.Header != k.mark || sealed.Trailer != "":
		return fmt.Errorf("%w: sealed answer, with a header in the clear", ErrRecordInvalid)
	}
	plain, err := k.open(ctx, sealed.Body, &binding{
		digest: digest, attempt: record.Attempt, fingerprint: record.Fingerprint, status: sealed.Status,
	})
	if err != nil {
		return err
	}
	resp := &Response{Status: sealed.Status}
	if err := resp.parseSecret(&record.Fingerprint, plain); err != nil {
		return err
	}
	record.Response = resp
	return nil
}

// sealer returns the key whose mark header begins with, or nil.
func (s *sealedStore) sealer(header Fields) *sealKey {
	for _, k := range s.keys {
		if k != nil && strings.HasPrefix(string(header), string(k.mark)) {
			return k
		}
	}
	return nil
}

// sealedClaim implements [Claim].
type sealedClaim struct {
	Claim
	key     *sealKey // nil: the answer stays in the clear
	noLease bool
	request Fingerprint
	to      binding // but for the status
	given   bool    // an answer has gone to the inner store
}

// Complete implements [Claim].
func (c *sealedClaim) Complete(ctx context.Context, resp Response, ttl time.Duration) error {
	if c.key == nil {
		return c.Claim.Complete(ctx, resp, ttl)
	}
	plain := newBuffer(secretSize(resp))
	plain.b = appendSecret(plain.b, c.request, resp)
	to := c.to
	to.status = resp.Status
	body, err := c.key.seal(ctx, plain.b, &to)
	if c.key.local != nil { // another cipher may still read it after the end of its context
		plain.free()
	}
	if err != nil {
		return c.fail(ctx, err)
	}
	c.given = true
	return c.Claim.Complete(ctx, Response{Status: resp.Status, Header: c.key.mark, Body: body}, ttl)
}

// rollbackTimeout bounds a rollback that takes place after the time for Complete may have passed.
const rollbackTimeout = 5 * time.Second

// fail returns the error of a Complete that has not reached the inner store. It ends a claim without a lease, unless an
// earlier Complete has: of such a claim nobody calls Release after a Complete.
func (c *sealedClaim) fail(ctx context.Context, err error) error {
	if !c.noLease || c.given {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	if failed := c.Release(ctx, 0); failed != nil {
		err = fmt.Errorf("%w; %w", err, failed)
	}
	return fmt.Errorf("%w: %w", ErrRolledBack, err)
}

// What is sealed is the fingerprint of the request, and the response but for its status, which is bound to it.
const (
	secretWhole   = 0
	secretOmitted = 1
)

// secretSize returns how many bytes appendSecret appends at most.
func secretSize(r Response) int {
	return len(Fingerprint{}) + 1 + 8 + len(r.Header) + 8 + len(r.Trailer) + len(r.Body)
}

// appendSecret appends what is sealed of the response to a request with fingerprint fp.
func appendSecret(b []byte, fp Fingerprint, r Response) []byte {
	b = append(b, fp[:]...)
	if r.Omitted {
		b, r.Body = append(b, secretOmitted), nil
	} else {
		b = append(b, secretWhole)
	}
	b = appendPart(b, string(r.Header))
	b = appendPart(b, string(r.Trailer))
	return append(b, r.Body...)
}

// parseSecret sets r and fp to what appendSecret was given, but for the status. The body of r is a part of b.
func (r *Response) parseSecret(fp *Fingerprint, b []byte) error {
	if len(b) <= len(fp) {
		return fmt.Errorf("%w: sealed answer of %d bytes", ErrRecordInvalid, len(b))
	}
	rest := b[copy(fp[:], b):]
	kind := rest[0]
	header, rest, ok := cutPart(rest[1:])
	trailer, body, whole := cutPart(rest)
	if !ok || !whole || kind != secretWhole && kind != secretOmitted {
		return fmt.Errorf("%w: form of a sealed answer", ErrRecordInvalid)
	}
	r.Header, r.Trailer, r.Body, r.Omitted = Fields(header), Fields(trailer), body, kind == secretOmitted
	return nil
}

// cutPart returns the part that appendPart has written, and what follows it.
func cutPart(b []byte) (part, rest []byte, ok bool) {
	if len(b) < 8 {
		return nil, nil, false
	}
	size, rest := binary.BigEndian.Uint64(b), b[8:]
	if size > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:size], rest[size:], true
}
