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

	"github.com/idempotency-go/idempotency"
)

// Key is a key of a [Store]. It can be read from JSON, with its Secret in base64. When fmt, log/slog, encoding/json or
// another encoder of text writes it, they write its ID only. There are two exceptions, in which fmt does not ask the
// Key and shows the Secret: the verbs %p and %w, which are not meant for a Key, and a Key in an unexported field of a
// struct.
type Key struct {
	// ID names the key in the records. It has 1 to 32 characters out of A-Z, a-z, 0-9, ".", "_" and "-".
	ID string

	// Secret is at least 32 random bytes. The key of the fingerprints is derived from it and, if Cipher is nil, an
	// AES-256 key (HKDF with SHA-256).
	Secret []byte

	// Cipher encrypts the answers and the results of steps. Nil means AES-256-GCM, each with a random nonce of 96 bits.
	// One such key may seal 2^32 of them (NIST SP 800-38D, section 8.3). Change the key before that. Each call of
	// [idempotency.Claim].Complete and of [idempotency.Checkpointer].Checkpoint counts, repetitions included.
	Cipher Cipher
}

// String returns the ID of the key, as in "seal.Key(2026)".
func (k Key) String() string { return "seal.Key(" + k.ID + ")" }

// Format implements [fmt.Formatter]: it writes what String returns, whatever the verb.
func (k Key) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, k.String()) }

// MarshalText implements [encoding.TextMarshaler]: it keeps the Secret out of JSON, XML and logs.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Cipher is authenticated encryption with associated data, such as a key management service, or a keyset of a library.
// It is safe for concurrent use. It is called within a step of the store, and [idempotency.Options].StoreTimeout bounds
// both together.
//
// If a service limits the size of what it encrypts, put envelope encryption in front of it. An answer may have
// Options.MaxResponse bytes, and its header besides. A result of a step may have 64 KiB. A retry decrypts all results
// of its operation one after another, within one step of the store.
type Cipher interface {
	// Encrypt returns plain in encrypted form, in new memory, and binds it to aad. It modifies neither of them.
	Encrypt(ctx context.Context, plain, aad []byte) ([]byte, error)

	// Decrypt returns what Encrypt was given as plain, in new memory. It must return an error unless sealed is what
	// Encrypt has returned, and aad is equal.
	Decrypt(ctx context.Context, sealed, aad []byte) ([]byte, error)
}

var keyID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,32}$`)

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
		check(keyID.MatchString(key.ID),
			"Keys[%d].ID %q does not have 1 to 32 characters out of A-Z, a-z, 0-9, \".\", \"_\" and \"-\"", i, key.ID)
		check(!seen[key.ID], "Keys[%d].ID %q is that of another key", i, key.ID)
		check(len(key.Secret) >= minSecret, "Keys[%d].Secret has %d bytes, not %d or more", i, len(key.Secret), minSecret)
		seen[key.ID] = true
	}
	return errors.Join(faults...)
}

const minSecret = 32

// sealer is a [Key] in the form in which it is used.
type sealer struct {
	id     string
	mark   idempotency.Fields // the header of what it has sealed
	macs   sync.Pool          // of *mac, with the key of the fingerprints
	cipher Cipher
}

// mac is an HMAC with room for what goes in and out.
type mac struct {
	hash.Hash
	space [2 * sha256.Size]byte
}

// magic begins the only line in the header of a sealed answer. The ID of the key follows. No answer in the clear begins
// like this: a field without a name cannot be set by anybody, see [idempotency.NewFields].
const magic = ":sealed/1 "

func newSealer(key Key) (*sealer, error) {
	k := &sealer{id: key.ID, mark: idempotency.Fields(magic + key.ID + "\n"), cipher: key.Cipher}
	secret, err := hkdf.Key(sha256.New, key.Secret, nil, "idempotency/seal/1 fingerprint", sha256.Size)
	if err != nil {
		return nil, err
	}
	k.macs.New = func() any { return &mac{Hash: hmac.New(sha256.New, secret)} }
	if key.Cipher == nil {
		k.cipher, err = newGCM(key.Secret)
	}
	return k, err
}

// gcm is the [Cipher] of a [Key] without one. It adds a nonce by itself.
type gcm struct{ cipher.AEAD }

// overhead is by how much gcm makes an answer longer: a nonce and a tag.
const overhead = 12 + 16

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

// Encrypt puts the encrypted form in the place of plain, if that has the room.
func (g gcm) Encrypt(_ context.Context, plain, aad []byte) ([]byte, error) {
	return g.Seal(plain[:0], nil, plain, aad), nil
}

// Decrypt implements [Cipher].
func (g gcm) Decrypt(_ context.Context, sealed, aad []byte) ([]byte, error) {
	return g.Open(nil, nil, sealed, aad)
}

// waits reports whether the key may wait for something. Nil does not.
func (k *sealer) waits() bool {
	if k == nil {
		return false
	}
	_, local := k.cipher.(gcm)
	return !local
}

// fingerprint returns what the inner store has instead of fp. A nil key leaves it in the clear.
func (k *sealer) fingerprint(digest [sha256.Size]byte, fp idempotency.Fingerprint) idempotency.Fingerprint {
	if k == nil {
		return fp
	}
	m := k.macs.Get().(*mac)
	defer k.macs.Put(m)
	copy(m.space[:], digest[:])
	copy(m.space[len(digest):], fp[:])
	m.Reset()
	m.Write(m.space[:]) // never fails
	return idempotency.Fingerprint(m.Sum(m.space[:0]))
}

// binding is what a sealed answer belongs to: opened under any other, it is refused.
type binding struct {
	digest      [sha256.Size]byte // of the key of the operation
	attempt     int
	fingerprint idempotency.Fingerprint // as the inner store has it
	status      int
}

// bind returns the binding as associated data. Each part but the last has a fixed size.
func (k *sealer) bind(to *binding) []byte {
	b := make([]byte, 0, 160)
	b = append(b, "idempotency/seal/1 answer\n"...)
	b = append(b, to.digest[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(to.attempt))
	b = append(b, to.fingerprint[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(to.status))
	return append(b, k.id...)
}

// seal returns plain in encrypted form, bound to aad. Plain is used up.
func (k *sealer) seal(ctx context.Context, plain, aad []byte) ([]byte, error) {
	sealed, err := k.cipher.Encrypt(ctx, plain, aad)
	if err != nil {
		return nil, fmt.Errorf("seal: key %q: %w", k.id, err)
	}
	return sealed, nil
}

// open returns what seal was given. What says what that is.
func (k *sealer) open(ctx context.Context, sealed, aad []byte, what string) ([]byte, error) {
	plain, err := k.cipher.Decrypt(ctx, sealed, aad)
	if err != nil {
		return nil, fmt.Errorf("%w: sealed %s, key %q: %w", idempotency.ErrRecordInvalid, what, k.id, err)
	}
	return plain, nil
}
