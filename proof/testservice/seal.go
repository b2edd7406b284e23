package testservice

import (
	"bytes"
	"context"
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/seal"
)

// SealKey returns a key with the given ID. The secret depends only on the ID.
func SealKey(id string) seal.Key {
	secret := sha256.Sum256([]byte(id))
	return seal.Key{ID: id, Secret: secret[:]}
}

// Sealing returns options with a SealKey for each of ids.
func Sealing(ids ...string) seal.Options {
	var opts seal.Options
	for _, id := range ids {
		opts.Keys = append(opts.Keys, SealKey(id))
	}
	return opts
}

// OnlyOpening returns opts with OpenOnly set, so that the store opens sealed answers but seals no new answers.
func OnlyOpening(opts seal.Options) seal.Options {
	opts.OpenOnly = true
	return opts
}

// SealingWith returns options with one key, for which cipher encrypts and decrypts.
func SealingWith(cipher seal.Cipher) seal.Options {
	opts := Sealing("kms")
	opts.Keys[0].Cipher = cipher
	return opts
}

// MustSeal returns a sealed store on inner.
func MustSeal(t testing.TB, inner idempotency.Store, opts seal.Options) *seal.Store {
	t.Helper()
	store, err := seal.New(inner, opts)
	require.NoError(t, err)
	return store
}

// KeyService is a fake key management service. Without OnEncrypt or OnDecrypt, the operation returns a copy of its
// input.
type KeyService struct {
	OnEncrypt, OnDecrypt func(context.Context, []byte) ([]byte, error)
}

// Encrypt calls OnEncrypt.
func (s KeyService) Encrypt(ctx context.Context, plain, _ []byte) ([]byte, error) {
	if s.OnEncrypt == nil {
		return bytes.Clone(plain), nil
	}
	return s.OnEncrypt(ctx, plain)
}

// Decrypt calls OnDecrypt.
func (s KeyService) Decrypt(ctx context.Context, sealed, _ []byte) ([]byte, error) {
	if s.OnDecrypt == nil {
		return bytes.Clone(sealed), nil
	}
	return s.OnDecrypt(ctx, sealed)
}
