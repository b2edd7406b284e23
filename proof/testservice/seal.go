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

// SealKey returns a key whose secret depends on its ID only.
func SealKey(id string) seal.Key {
	secret := sha256.Sum256([]byte(id))
	return seal.Key{ID: id, Secret: secret[:]}
}

// Sealing returns options with the keys that ids name.
func Sealing(ids ...string) seal.Options {
	var opts seal.Options
	for _, id := range ids {
		opts.Keys = append(opts.Keys, SealKey(id))
	}
	return opts
}

// OnlyOpening returns options with which nothing new is sealed.
func OnlyOpening(opts seal.Options) seal.Options {
	opts.OpenOnly = true
	return opts
}

// SealingWith returns options with one key, that of a key management service.
func SealingWith(cipher seal.Cipher) seal.Options {
	opts := Sealing("kms")
	opts.Keys[0].Cipher = cipher
	return opts
}

// MustSeal seals what a store keeps.
func MustSeal(t testing.TB, inner idempotency.Store, opts seal.Options) *seal.Store {
	t.Helper()
	store, err := seal.New(inner, opts)
	require.NoError(t, err)
	return store
}

// KeyService is a key management service that does as its functions say. Without them it leaves all bytes as they are.
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
