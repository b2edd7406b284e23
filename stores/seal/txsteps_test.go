package seal_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

// book runs a step that writes the row "book", in a transaction, with a result.
func book(ctx context.Context, own idempotency.Checkpointer, result string) ([]byte, error) {
	var tx *testservice.RowTx
	return own.(idempotency.TxCheckpointer).CheckpointTx(ctx, &idempotency.TxStep{
		Name: "book", Var: &tx, Timeout: time.Minute, Run: func() ([]byte, error) { return []byte(result), tx.Write(ctx, "book") },
	})
}

// The result of a step in a transaction is sealed. Whoever has the key finds it opened, in that attempt and in a later one.
func TestSealedTxStep(t *testing.T) {
	t.Parallel()
	rows := testservice.NewRows()
	inner := testservice.NewRowStore(rows, "")
	store, key := testservice.MustSeal(t, inner, testservice.Sealing("2026")), testservice.NumberedKey(1)
	own := stepsOf(t, store, key)
	for range 2 {
		stored, err := book(t.Context(), own, "to hide")
		require.NoError(t, err)
		require.Equal(t, "to hide", string(stored))
	}
	mustRelease(t, own)
	own = stepsOf(t, store, key)
	found, err := own.Checkpoints(t.Context())
	require.NoError(t, err)
	require.Equal(t, "to hide", string(found["book"]))
	mustRelease(t, own)

	entry := testservice.MustInspect(t, inner.Store, key)
	clearly := testservice.MustClaim(t, inner, key, idempotency.ClaimRequest{
		Fingerprint: entry.Fingerprint, Lease: time.Minute, TTL: time.Hour,
	}).(idempotency.Checkpointer)
	stored, err := clearly.Checkpoints(t.Context())
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(stored["book"], []byte(":sealed/1 2026\n")))
	require.NotContains(t, string(stored["book"]), "to hide")
	n, err := rows.Count(t.Context(), "book")
	require.NoError(t, err)
	require.Equal(t, 1, n, "the second row was rolled back")
}

// A result that cannot be encrypted takes its rows with it.
func TestTxStepThatCannotBeEncrypted(t *testing.T) {
	t.Parallel()
	rows := testservice.NewRows()
	opts := testservice.SealingWith(testservice.KeyService{OnEncrypt: unavailable})
	own := stepsOf(t, testservice.MustSeal(t, testservice.NewRowStore(rows, ""), opts), testservice.NumberedKey(1))
	_, err := book(t.Context(), own, "1")
	require.ErrorIs(t, err, errKeyService)
	n, err := rows.Count(t.Context(), "book")
	require.NoError(t, err)
	require.Zero(t, n)
}
