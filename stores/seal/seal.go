// Package seal encrypts and authenticates the answers and the results of steps that any [idempotency.Store] keeps:
//
//	sealed, err := seal.New(store, seal.Options{Keys: []seal.Key{{ID: "2026", Secret: secret}}})
//
// Encrypted are header, trailer and body of an answer, the result of a step, and operator and reason of a resolution. The
// fingerprint of a request is stored as a keyed digest (HMAC-SHA256), so a reader of the inner store cannot confirm a guessed
// body, or see that two requests have equal bodies. Plain are status, attempt, times, the [idempotency.EndReason] of an
// attempt, whether an operation was resolved as happened, the name of a step, the sizes of answers and results, the ID of the
// sealing key, and the ID of the operation. The inner store gets the [idempotency.Key] itself, and may keep the key, as
// PostgreSQL does.
//
// Each answer is bound to its key, attempt, status and fingerprint, each result of a step to key, fingerprint and name, and
// each resolution to key and fingerprint. So an attacker who can write to the inner store cannot forge, alter or move an answer,
// a result or a resolution. Begin reports an answer that cannot be decrypted as [idempotency.ErrRecordInvalid], and the handler
// does not run, whatever the options. If a result of a step cannot be decrypted, every step of the operation returns that
// error instead of running. The attacker can still
//
//   - delete a record or mark it as released, so that the operation runs again;
//   - delete the result of a step, so that the step runs again if the operation does;
//   - mark a record as running, so that its operation is in progress;
//   - restore an older answer to the same request with the same number of attempts, or an older result of a step;
//   - delete a resolution, or restore an older resolution of the same operation;
//   - mark an answer as stored without a body, so that the answer is not replayable. A store without room sets this mark
//     too. The status of such an answer is reported as zero, because the mark is not authenticated.
package seal

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Options are the settings of a [Store].
type Options struct {
	// Keys are the keys in use. The first key encrypts, and every key decrypts.
	//
	// To rotate keys, first add the new key behind the old key in every process, so that all processes can decrypt with the new
	// key. Then put the new key first. Remove the old key a TTL after the last process has changed, because all records that the
	// old key has encrypted have expired by then. A record of a missing key is refused with [idempotency.ErrRecordInvalid]. An
	// operation that was begun under a missing key, has failed since, and is still retried is refused with
	// [idempotency.ErrKeyReused]. The limit of a key (see [Key]) counts for all processes together.
	Keys []Key

	// AllowClear also replays plain answers and returns plain results of steps, which were stored before the store was sealed. By
	// default, plain answers and results are refused with [idempotency.ErrRecordInvalid]. While AllowClear is set, an attacker who
	// can write to the inner store can forge answers and results. So unset AllowClear a TTL after the last process has begun to
	// encrypt.
	AllowClear bool

	// OpenOnly decrypts records, but stores new records in plain text. OpenOnly includes AllowClear. To introduce encryption while
	// processes are replaced one after the other, first deploy OpenOnly everywhere, and then AllowClear. Without OpenOnly, a
	// process that does not encrypt yet takes the retry of a sealed request for another request, and refuses the retry with
	// [idempotency.ErrKeyReused].
	OpenOnly bool
}

// Store is an [idempotency.Store] that keeps its records in an inner store, where answers and results of steps are encrypted.
// A claim of a Store is an [idempotency.Checkpointer] if the claim of the inner store is.
//
// Errors of Begin and Complete, and of the checkpoints of a claim:
//
//   - The [Cipher] cannot decrypt: Begin returns [idempotency.ErrRecordInvalid] and the error of the Cipher. Begin does so even
//     for a temporary reason, such as a service that is down, because a completed operation must not run again.
//   - The Cipher cannot encrypt: Complete returns the error of the Cipher, and may be repeated.
//
// A Store has the abilities of the inner store as an idempotency.Store and as an [idempotency.Inspector]. Call other methods, such
// as Check, on the inner store. A Store is safe for concurrent use.
type Store struct {
	inner idempotency.Store
	keys  []*sealer // the first key encrypts; nil stands for plain text

	acceptsPlain bool // plain answers are replayed
}

var _ idempotency.Store = (*Store)(nil)

// New returns a store that encrypts the records of inner. The error reports every fault of opts.
func New(inner idempotency.Store, opts Options) (*Store, error) {
	if err := opts.validate(inner); err != nil {
		return nil, err
	}
	s := &Store{inner: inner, acceptsPlain: opts.AllowClear || opts.OpenOnly}
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

// Immediate implements [idempotency.Immediate]. A Store is immediate if the inner store is, and no key has a [Cipher].
func (s *Store) Immediate() bool {
	inner, ok := s.inner.(idempotency.Immediate)
	return ok && inner.Immediate() && !slices.ContainsFunc(s.keys, (*sealer).mayWait)
}

// Begin implements [idempotency.Store].
func (s *Store) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	operation, fp := key.OperationID(), request.Fingerprint
	request.Fingerprint = s.keys[0].digestFingerprint(operation, fp)
	record, claim, err := s.inner.Begin(ctx, key, request)
	// An operation that was begun under an older key has the fingerprint of that key in the inner store, so Begin asks again with
	// the stored fingerprint. If the record expires in between, the inner store begins a new operation with the fingerprint of
	// the older key. This is harmless, because the fingerprint belongs to the same request, and the first key encrypts the answer.
	for err == nil && claim == nil && record.Fingerprint != request.Fingerprint && isIdle(&record) &&
		s.isFingerprintOf(operation, fp, record.Fingerprint) {
		request.Fingerprint = record.Fingerprint
		record, claim, err = s.inner.Begin(ctx, key, request)
	}
	switch {
	case err != nil:
		return record, nil, err
	case claim == nil:
		record, err = s.openRecord(ctx, operation, fp, record)
		return record, nil, err
	}
	own := &sealedSteps{sealedClaim{
		Claim: claim, store: s, sealKey: s.keys[0], requestFingerprint: fp,
		boundTo: binding{operation: operation, attempt: record.Attempt, fingerprint: request.Fingerprint},
	}}
	record.Fingerprint = fp
	if _, ok := claim.(idempotency.Checkpointer); !ok {
		return record, &own.sealedClaim, nil
	}
	return record, own, nil
}

// isIdle reports whether an operation is neither running nor completed.
func isIdle(record *idempotency.Record) bool {
	return record.Response == nil && record.LeaseLeft <= 0
}

// isFingerprintOf reports whether stored is the keyed digest of the request fingerprint fp, under any key.
func (s *Store) isFingerprintOf(operation uuid.UUID, fp, stored idempotency.Fingerprint) bool {
	return slices.ContainsFunc(s.keys, func(k *sealer) bool { return k.digestFingerprint(operation, fp) == stored })
}

// openRecord returns a record of the inner store with its answer decrypted, and with fingerprint fp if the record belongs to a
// request with fingerprint fp.
func (s *Store) openRecord(
	ctx context.Context, operation uuid.UUID, fp idempotency.Fingerprint, record idempotency.Record,
) (idempotency.Record, error) {
	resp := record.Response
	switch {
	case resp == nil:
	case isSealed(resp):
		if err := s.openAnswer(ctx, operation, &record); err != nil {
			return record, err
		}
	case s.acceptsPlain:
	case resp.Omitted:
		record.Response = &idempotency.Response{Omitted: true} // status and fields may be forged
	default:
		return record, fmt.Errorf("%w: the answer is not sealed", idempotency.ErrRecordInvalid)
	}
	if s.isFingerprintOf(operation, fp, record.Fingerprint) {
		record.Fingerprint = fp
	}
	return record, nil
}

// isSealed reports whether a response is encrypted, by any key.
func isSealed(resp *idempotency.Response) bool {
	return !resp.Omitted && strings.HasPrefix(string(resp.Header), markPrefix)
}

// openAnswer decrypts the response of a record, and replaces the fingerprint of the record by the fingerprint of the answered
// request. An answer of an operator has no request fingerprint, so the record keeps its own.
func (s *Store) openAnswer(ctx context.Context, operation uuid.UUID, record *idempotency.Record) error {
	sealed := record.Response
	i := slices.IndexFunc(s.keys, func(k *sealer) bool { return k != nil && k.headerMark == sealed.Header })
	if i < 0 || sealed.Trailer != "" || sealed.Note != "" {
		return fmt.Errorf("%w: sealed answer, key unknown, or a part in plain text", idempotency.ErrRecordInvalid)
	}
	plain, err := s.keys[i].decrypt(ctx, sealed.Body, s.keys[i].bindAnswer(&binding{
		operation: operation, attempt: record.Attempt, fingerprint: record.Fingerprint, status: sealed.Status,
	}), "answer")
	if err != nil {
		return err
	}
	fp, resp, err := parseSecret(plain)
	if err != nil {
		return fmt.Errorf("sealed answer of %d bytes: %w", len(plain), err)
	}
	record.Response = &resp
	if fp != (idempotency.Fingerprint{}) { // zero: an operator has answered
		record.Fingerprint = fp
	}
	return nil
}

// sealedClaim implements [idempotency.Claim].
type sealedClaim struct {
	idempotency.Claim
	store   *Store
	sealKey *sealer // nil: plain text
	boundTo binding // without the status

	requestFingerprint idempotency.Fingerprint
}

// Complete implements [idempotency.Claim].
func (c *sealedClaim) Complete(ctx context.Context, resp idempotency.Response, ttl time.Duration) error {
	sealed, err := c.sealKey.sealAnswer(ctx, c.requestFingerprint, resp, c.boundTo)
	if err != nil {
		return err
	}
	return c.Claim.Complete(ctx, sealed, ttl)
}

// sealAnswer encrypts an answer to the request with fingerprint fp for the inner store. A nil key returns the plain answer.
func (k *sealer) sealAnswer(
	ctx context.Context, fp idempotency.Fingerprint, resp idempotency.Response, to binding,
) (idempotency.Response, error) {
	if k == nil {
		return resp, nil
	}
	to.status = resp.Status
	body, err := k.encrypt(ctx, encodeSecret(fp, resp), k.bindAnswer(&to))
	return idempotency.Response{Status: resp.Status, Header: k.headerMark, Body: body}, err
}

// encodeSecret returns the plain text of a sealed answer: the fingerprint of the request, followed by the stored form of the
// response. The slice has capacity for an encryption in place.
func encodeSecret(fp idempotency.Fingerprint, r idempotency.Response) []byte {
	const firstLine = 128
	size := len(fp) + firstLine + len(r.Note) + len(r.Header) + len(r.Trailer) + len(r.Body) + gcmOverhead
	b, _ := r.AppendBinary(append(make([]byte, 0, size), fp[:]...)) // never fails
	return b
}

// parseSecret decodes what encodeSecret has encoded. The body of the response shares the memory of b.
func parseSecret(b []byte) (fp idempotency.Fingerprint, r idempotency.Response, err error) {
	err = r.UnmarshalBinary(b[copy(fp[:], b):])
	return fp, r, err
}
