// Package seal encrypts and authenticates the answers and the results of steps that an [idempotency.Store] keeps,
// whatever store that is:
//
//	sealed, err := seal.New(store, seal.Options{Keys: []seal.Key{{ID: "2026", Secret: secret}}})
//
// Header, trailer and body of an answer are secret, and so are the result of a step, and operator and reason of a
// resolution. The fingerprint of a request is stored as a keyed digest (HMAC-SHA256). So nobody can confirm a guessed body
// by it, or see that two requests have equal bodies. These stay in the clear: status, attempt, times, whether an operation
// was resolved as happened, the name of a step, the sizes of answers and results, the ID of the sealing key, and the digest
// of the [idempotency.Key]. The inner store gets the idempotency.Key itself, and may keep it, as PostgreSQL does.
//
// Each answer is bound to its key, attempt, status and fingerprint, each result of a step to key, fingerprint and name, and
// each resolution to key and fingerprint. Somebody who can write to the inner store cannot make up, alter or move any of them. Begin reports an answer
// that cannot be opened as [idempotency.ErrRecordInvalid], and the handler does not run then, whatever the options. If a
// result of a step cannot be opened, no step of its operation runs, and each returns that error. The same person can
// still
//
//   - delete a record or mark it as released, so that the operation runs again;
//   - delete the result of a step, so that the step runs again if the operation does;
//   - mark a record as running, so that its operation is in progress;
//   - bring back an older answer to the same request, with the same number of attempts, or an older result of a step;
//   - delete what is kept of a resolution, or bring back an older one of the same operation;
//   - mark an answer as one whose body was not kept, so that it is not replayable. A store without room sets this mark
//     too. The status of such an answer is reported as zero, because nothing vouches for it.
package seal

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idempotency-go/idempotency"
)

// Options are the settings of a [Store].
type Options struct {
	// Keys are the keys in use. The first one seals, and each of them opens.
	//
	// To rotate, add the new key behind the old one in every process, so that all can open what it seals. Then put the new
	// key first. Remove the old key a TTL after the last process has changed: nothing is sealed with it any more. What was
	// sealed with a missing key is refused with [idempotency.ErrRecordInvalid]. An operation that was begun under a
	// missing key, has failed ever since and is still being retried is refused with [idempotency.ErrKeyReused]. What a key
	// may seal (see [Key]) counts for all processes together.
	Keys []Key

	// AllowClear also replays answers, and returns results of steps, that were stored before the store was sealed. By
	// default they are refused with [idempotency.ErrRecordInvalid]. While AllowClear is set, anybody who can write to the
	// inner store can forge them. So unset it a TTL after the last process has begun to seal.
	AllowClear bool

	// OpenOnly opens what is sealed, and goes on to store what is new in the clear. It includes AllowClear. It is the
	// first of two steps by which sealing is rolled in where processes are replaced one by one: at first OpenOnly, and
	// then AllowClear. Without it, a process that does not seal yet takes the repetition of a sealed request for another
	// request, and refuses it with [idempotency.ErrKeyReused].
	OpenOnly bool
}

// Store is an [idempotency.Store] that keeps its records in another one, where answers and results of steps are sealed.
// Each of its claims is an [idempotency.Checkpointer] if those of the other store are.
//
// The error of Begin or Complete wraps that of the [Cipher]. If the Cipher cannot decrypt, Begin also reports
// [idempotency.ErrRecordInvalid]. It does so even if the reason may pass, such as a service that is down: an operation
// that is completed must not run again. If the Cipher cannot encrypt, Complete fails and may be repeated. The same holds for
// the checkpoints of a claim.
//
// A Store does all that the inner store does as an idempotency.Store and as an [idempotency.Inspector]. Call other
// methods, such as Check, on the inner store. A Store is safe for concurrent use.
type Store struct {
	inner idempotency.Store
	keys  []*sealer // the first one seals; nil stands for the clear
	clear bool      // clear answers are replayed
}

var _ idempotency.Store = (*Store)(nil)

// New returns a store that seals what the inner store keeps. The error reports every fault of opts.
func New(inner idempotency.Store, opts Options) (*Store, error) {
	if err := opts.validate(inner); err != nil {
		return nil, err
	}
	s := &Store{inner: inner, clear: opts.AllowClear || opts.OpenOnly}
	for _, key := range opts.Keys {
		k, err := newSealer(key)
		if err != nil {
			return nil, fmt.Errorf("seal: key %q: %w", key.ID, err)
		}
		s.keys = append(s.keys, k)
	}
	switch {
	case opts.OpenOnly:
		s.keys = append([]*sealer{nil}, s.keys...)
	case opts.AllowClear:
		s.keys = append(s.keys, nil)
	}
	return s, nil
}

// Unwrap returns the inner store.
func (s *Store) Unwrap() idempotency.Store { return s.inner }

// Immediate implements [idempotency.Immediate]. A [Cipher] may wait, and the inner store.
func (s *Store) Immediate() bool {
	inner, ok := s.inner.(idempotency.Immediate)
	return ok && inner.Immediate() && !slices.ContainsFunc(s.keys, (*sealer).waits)
}

// Begin implements [idempotency.Store].
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
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
		return record, nil, err
	case claim == nil:
		record, err = s.reveal(ctx, digest, fp, record)
		return record, nil, err
	}
	own := &sealedSteps{sealedClaim{
		Claim: claim, store: s, key: s.keys[0], request: fp,
		to: binding{digest: digest, attempt: record.Attempt, fingerprint: request.Fingerprint},
	}}
	record.Fingerprint = fp
	if _, ok := claim.(idempotency.Checkpointer); !ok {
		return record, &own.sealedClaim, nil
	}
	return record, own, nil
}

// idle reports whether nobody runs the operation, and nobody has completed it.
func idle(record *idempotency.Record) bool {
	return record.Response == nil && record.LeaseLeft <= 0
}

// same reports whether stored is the fingerprint fp of a request, under any key.
func (s *Store) same(digest [sha256.Size]byte, fp, stored idempotency.Fingerprint) bool {
	return slices.ContainsFunc(s.keys, func(k *sealer) bool { return k.fingerprint(digest, fp) == stored })
}

// reveal returns the record that holds a key as a request with fingerprint fp is to see it.
func (s *Store) reveal(
	ctx context.Context, digest [sha256.Size]byte, fp idempotency.Fingerprint, record idempotency.Record,
) (idempotency.Record, error) {
	resp := record.Response
	switch {
	case resp == nil:
	case isSealed(resp):
		if err := s.open(ctx, digest, &record); err != nil {
			return record, err
		}
	case s.clear:
	case resp.Omitted:
		record.Response = &idempotency.Response{Omitted: true} // the rest may be forged
	default:
		return record, fmt.Errorf("%w: the answer is not sealed", idempotency.ErrRecordInvalid)
	}
	if s.same(digest, fp, record.Fingerprint) {
		record.Fingerprint = fp
	}
	return record, nil
}

// isSealed reports whether a response is a sealed one, by whatever key.
func isSealed(resp *idempotency.Response) bool {
	return !resp.Omitted && strings.HasPrefix(string(resp.Header), magic)
}

// open replaces the sealed response of a record by what is in it, and the fingerprint by that of the request that was
// answered, if that is known.
func (s *Store) open(ctx context.Context, digest [sha256.Size]byte, record *idempotency.Record) error {
	sealed := record.Response
	i := slices.IndexFunc(s.keys, func(k *sealer) bool { return k != nil && k.mark == sealed.Header })
	if i < 0 || sealed.Trailer != "" || sealed.Note != "" {
		return fmt.Errorf("%w: sealed answer, key unknown, or a part in the clear", idempotency.ErrRecordInvalid)
	}
	plain, err := s.keys[i].open(ctx, sealed.Body, s.keys[i].bind(&binding{
		digest: digest, attempt: record.Attempt, fingerprint: record.Fingerprint, status: sealed.Status,
	}), "answer")
	if err != nil {
		return err
	}
	fp, resp, err := parseSecret(plain)
	if err != nil {
		return fmt.Errorf("sealed answer of %d bytes: %w", len(plain), err)
	}
	record.Response = &resp
	if fp != (idempotency.Fingerprint{}) { // else an operator has answered, who did not know it
		record.Fingerprint = fp
	}
	return nil
}

// sealedClaim implements [idempotency.Claim].
type sealedClaim struct {
	idempotency.Claim
	store   *Store
	key     *sealer // nil: nothing is sealed
	request idempotency.Fingerprint
	to      binding // but for the status
}

// Complete implements [idempotency.Claim].
func (c *sealedClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	sealed, err := c.key.sealAnswer(ctx, c.request, resp, c.to)
	if err != nil {
		return err
	}
	return c.Claim.Complete(ctx, sealed, ttl)
}

// sealAnswer returns what the inner store gets of an answer to the request with fingerprint fp. A nil key leaves it in the
// clear.
func (k *sealer) sealAnswer(
	ctx context.Context, fp idempotency.Fingerprint, resp idempotency.Response, to binding,
) (idempotency.Response, error) {
	if k == nil {
		return resp, nil
	}
	to.status = resp.Status
	body, err := k.seal(ctx, secret(fp, resp), k.bind(&to))
	return idempotency.Response{Status: resp.Status, Header: k.mark, Body: body}, err
}

// secret returns what is sealed: the fingerprint of the request, and behind it the stored form of the response. It has
// room to be sealed in place.
func secret(fp idempotency.Fingerprint, r idempotency.Response) []byte {
	const firstLine = 128
	size := len(fp) + firstLine + len(r.Note) + len(r.Header) + len(r.Trailer) + len(r.Body) + overhead
	b, _ := r.AppendBinary(append(make([]byte, 0, size), fp[:]...)) // never fails
	return b
}

// parseSecret returns what secret was given. The body is a part of b.
func parseSecret(b []byte) (fp idempotency.Fingerprint, r idempotency.Response, err error) {
	err = r.UnmarshalBinary(b[copy(fp[:], b):])
	return fp, r, err
}
