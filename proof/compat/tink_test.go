package compat_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// tinkCipher seals with a keyset.
type tinkCipher struct{ tink.AEAD }

func (c tinkCipher) Encrypt(_ context.Context, plain, aad []byte) ([]byte, error) {
	return c.AEAD.Encrypt(plain, aad)
}

func (c tinkCipher) Decrypt(_ context.Context, sealed, aad []byte) ([]byte, error) {
	return c.AEAD.Decrypt(sealed, aad)
}

// tinkService seals with data keys, which a key management service encrypts.
type tinkService struct{ tink.AEADWithContext }

func (c tinkService) Encrypt(ctx context.Context, plain, aad []byte) ([]byte, error) {
	return c.EncryptWithContext(ctx, plain, aad)
}

func (c tinkService) Decrypt(ctx context.Context, sealed, aad []byte) ([]byte, error) {
	return c.DecryptWithContext(ctx, sealed, aad)
}

// keyService stands for a remote service.
type keyService struct{ tink.AEAD }

func (s keyService) EncryptWithContext(ctx context.Context, plain, aad []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.Encrypt(plain, aad)
}

func (s keyService) DecryptWithContext(ctx context.Context, sealed, aad []byte) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.Decrypt(sealed, aad)
}

func newKeyset(t *testing.T) (*keyset.Manager, tink.AEAD) {
	t.Helper()
	keys := keyset.NewManager()
	addKey(t, keys)
	return keys, openKeyset(t, keys)
}

// addKey adds a key to a keyset, and makes the new key the encrypting key.
func addKey(t *testing.T, keys *keyset.Manager) {
	t.Helper()
	id, err := keys.Add(aead.AES256GCMKeyTemplate())
	require.NoError(t, err)
	require.NoError(t, keys.SetPrimary(id))
}

func openKeyset(t *testing.T, keys *keyset.Manager) tink.AEAD {
	t.Helper()
	handle, err := keys.Handle()
	require.NoError(t, err)
	primitive, err := aead.New(handle)
	require.NoError(t, err)
	return primitive
}

// sealWith returns options with a cipher.
func sealWith(secret []byte, cipher seal.Cipher) seal.Options {
	return seal.Options{Keys: []seal.Key{{ID: "tink", Secret: secret, Cipher: cipher}}}
}

func newSecret() []byte {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	return secret
}

func TestTinkConforms(t *testing.T) {
	t.Parallel()
	_, primitive := newKeyset(t)
	envelope, err := aead.NewKMSEnvelopeAEADWithContext(aead.AES256GCMKeyTemplate(), keyService{primitive})
	require.NoError(t, err)
	for name, cipher := range map[string]seal.Cipher{
		"keyset": tinkCipher{primitive}, "envelope": tinkService{envelope},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			idempotencytest.Run(t, func(t *testing.T) idempotency.Store {
				store, err := seal.New(
					idempotency.NewMemoryStore(idempotency.MemoryOptions{}), sealWith(newSecret(), cipher))
				require.NoError(t, err)
				return store
			})
		})
	}
}

// A rotation of the keyset needs no other change. Records sealed by a different keyset, or bound to a different
// operation, are rejected.
func TestTinkKeysetRotates(t *testing.T) {
	t.Parallel()
	inner, secret := idempotency.NewMemoryStore(idempotency.MemoryOptions{}), newSecret()
	keys, before := newKeyset(t)
	addKey(t, keys)
	after := openKeyset(t, keys)
	_, other := newKeyset(t)
	begin := func(primitive tink.AEAD) (idempotency.Record, idempotency.Claim, error) {
		store, err := seal.New(inner, sealWith(secret, tinkCipher{primitive}))
		require.NoError(t, err)
		return store.Begin(t.Context(), idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "1"},
			idempotency.ClaimRequest{Lease: long, TTL: long})
	}

	_, claim, err := begin(before)
	require.NoError(t, err)
	resp := idempotency.Response{Status: http.StatusCreated, Body: []byte(receipt)}
	require.NoError(t, claim.Complete(t.Context(), resp, long))
	record, _, err := begin(after)
	require.NoError(t, err)
	require.Equal(t, resp, *record.Response)
	_, _, err = begin(other)
	require.ErrorIs(t, err, idempotency.ErrRecordInvalid)
}
