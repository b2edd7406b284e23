package seal

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
	"sync"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// Key is a key of a [Store]. A Key can be read from JSON, with the Secret in base64. Encoders of text, such as fmt, log/slog and
// encoding/json, write only the ID of a Key. In two cases fmt does not call the methods of Key, and shows the Secret: with the
// verbs %p and %w, which are not meant for a Key, and for a Key in an unexported field of a struct.
type Key struct {
	// ID names the key in the records. An ID has 1 to 32 characters out of A-Z, a-z, 0-9, ".", "_" and "-".
	ID string

	// Secret is at least 32 random bytes. HKDF with SHA-256 derives from Secret the key of the fingerprints and, if Cipher is nil,
	// an AES-256 key.
	Secret []byte

	// Cipher encrypts the answers and the results of steps. Nil means AES-256-GCM, with a random nonce of 96 bits for each
	// message. An AES key may encrypt 2^32 messages (NIST SP 800-38D, section 8.3), so rotate the key before that. Each call of
	// [idempotency.Claim].Complete and of [idempotency.Checkpointer].Checkpoint encrypts a message, repetitions included.
	Cipher Cipher
}

// String returns the ID of the key, as in "seal.Key(2026)".
func (k Key) String() string { return "seal.Key(" + k.ID + ")" }

// Format implements [fmt.Formatter]. Format writes the result of String for every verb.
func (k Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, k.String()) }

// MarshalText implements [encoding.TextMarshaler]. MarshalText returns the result of String, so that JSON, XML and logs do not
// contain the Secret.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Cipher is authenticated encryption with associated data, such as a key management service, or a keyset of a library. A Cipher
// is safe for concurrent use. The Store calls the Cipher within a call of the inner store, and
// [idempotency.Options].StoreTimeout bounds both together.
//
// If a service limits the size of a message, put envelope encryption in front of the service. An answer may have
// Options.MaxResponse bytes and a header. A result of a step may have 64 KiB. A retry decrypts all results of its operation
// one after the other, within StoreTimeout.
type Cipher interface {
	// Encrypt returns plain in encrypted form, bound to aad, in new memory. Encrypt modifies neither plain nor aad.
	Encrypt(ctx context.Context, plain, aad []byte) ([]byte, error)

	// Decrypt returns the plain text of sealed, in new memory. Decrypt must return an error unless Encrypt has returned sealed
	// for an equal aad.
	Decrypt(ctx context.Context, sealed, aad []byte) ([]byte, error)
}

var keyIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`)

func (o Options) validate(inner idempotency.Store) error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("seal: "+format, args...))
		}
	}
	check(inner != nil, "Store is nil")
	check(len(o.Keys) > 0, "Options has no Keys")
	seen := make(map[string]bool)
	for i, key := range o.Keys {
		check(keyIDPattern.MatchString(key.ID),
			"Keys[%d].ID %q does not have 1 to 32 characters out of A-Z, a-z, 0-9, \".\", \"_\" and \"-\"", i, key.ID)
		check(!seen[key.ID], "Keys[%d].ID %q is that of another key", i, key.ID)
		check(len(key.Secret) >= minSecretSize, "Keys[%d].Secret has %d bytes, not %d or more", i, len(key.Secret), minSecretSize)
		seen[key.ID] = true
	}
	return errors.Join(faults...)
}

const minSecretSize = 32

// sealer encrypts and decrypts with one [Key].
type sealer struct {
	keyID      string
	headerMark idempotency.Fields // the header of a sealed answer
	macPool    sync.Pool          // of *mac, with the key of the fingerprints
	cipher     Cipher
}

// mac is an HMAC with space for its input and its output, so that a digest needs no allocation.
type mac struct {
	hash.Hash
	space [len(uuid.UUID{}) + sha256.Size]byte
}

// markPrefix begins the only line in the header of a sealed answer, followed by the ID of the key. The header of a plain answer
// never begins with markPrefix, because [idempotency.NewFields] refuses a field without a name.
const markPrefix = ":sealed/1 "

func newSealer(key Key) (*sealer, error) {
	k := &sealer{keyID: key.ID, headerMark: idempotency.Fields(markPrefix + key.ID + "\n"), cipher: key.Cipher}
	secret, err := hkdf.Key(sha256.New, key.Secret, nil, "idempotency/seal/1 fingerprint", sha256.Size)
	if err != nil {
		return nil, err
	}
	k.macPool.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	if key.Cipher == nil {
		k.cipher, err = newGCM(key.Secret)
	}
	return k, err
}

// gcm is AES-256-GCM, the default [Cipher] of a [Key]. The AEAD adds a random nonce to each message.
type gcm struct{ cipher.AEAD }

// gcmOverhead is the size of the nonce and the tag that gcm adds to a message.
const gcmOverhead = 12 + 16

func newGCM(secret []byte) (gcm, error) {
	key, err := hkdf.Key(sha256.New, secret, nil, "idempotency/seal/1 AES-256-GCM", 32)
	if err != nil {
		return gcm{}, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return gcm{}, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return gcm{aead}, err
}

// Encrypt implements [Cipher], except that Encrypt overwrites plain if the capacity of plain is sufficient.
func (g gcm) Encrypt(_ context.Context, plain, aad []byte) ([]byte, error) {
	return g.Seal(plain[:0], nil, plain, aad), nil
}

// Decrypt implements [Cipher].
func (g gcm) Decrypt(_ context.Context, sealed, aad []byte) ([]byte, error) {
	return g.Open(nil, nil, sealed, aad)
}

// mayWait reports whether the Cipher of the key may wait, for a service for example. A nil key never waits.
func (k *sealer) mayWait() bool {
	if k == nil {
		return false
	}
	_, local := k.cipher.(gcm)
	return !local
}

// digestFingerprint returns the keyed digest that the inner store has instead of fp. A nil key returns fp.
func (k *sealer) digestFingerprint(operation uuid.UUID, fp idempotency.Fingerprint) idempotency.Fingerprint {
	if k == nil {
		return fp
	}
	m := k.macPool.Get().(*mac)
	defer k.macPool.Put(m)
	copy(m.space[:], operation[:])
	copy(m.space[len(operation):], fp[:])
	m.Reset()
	m.Write(m.space[:]) // never fails
	return idempotency.Fingerprint(m.Sum(m.space[:0]))
}

// binding is what a sealed answer belongs to. An answer cannot be decrypted with another binding.
type binding struct {
	operation   uuid.UUID
	attempt     int
	fingerprint idempotency.Fingerprint // as the inner store has it
	status      int
}

// bindAnswer returns the binding as associated data. Every part except the last has a fixed size, so different bindings have
// different associated data.
func (k *sealer) bindAnswer(to *binding) []byte {
	b := make([]byte, 0, 160)
	b = append(b, "idempotency/seal/1 answer\n"...)
	b = append(b, to.operation[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(to.attempt))
	b = append(b, to.fingerprint[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(to.status))
	return append(b, k.keyID...)
}

// encrypt returns plain in encrypted form, bound to aad. The caller must not use plain afterwards.
func (k *sealer) encrypt(ctx context.Context, plain, aad []byte) ([]byte, error) {
	sealed, err := k.cipher.Encrypt(ctx, plain, aad)
	if err != nil {
		return nil, fmt.Errorf("seal: key %q: %w", k.keyID, err)
	}
	return sealed, nil
}

// decrypt returns the plain text of sealed. Errors name the sealed thing by what, such as "answer".
func (k *sealer) decrypt(ctx context.Context, sealed, aad []byte, what string) ([]byte, error) {
	plain, err := k.cipher.Decrypt(ctx, sealed, aad)
	if err != nil {
		return nil, fmt.Errorf("%w: sealed %s, key %q: %w", idempotency.ErrRecordInvalid, what, k.keyID, err)
	}
	return plain, nil
}
