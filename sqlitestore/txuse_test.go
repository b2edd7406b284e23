package sqlitestore_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/sqlitestore"
)

// Libraries over database/sql find what they need: prepared statements, arguments with names, types of columns, times,
// and several results that are read at the same time.
func TestLibraries(t *testing.T) {
	t.Parallel()
	store, other := openOrders(t, sqlitestore.Options{Parameters: "_time_format=sqlite"})
	execute(t, other, `CREATE TABLE payments
		(id INTEGER PRIMARY KEY, rate REAL, note TEXT, proof BLOB, settled BOOLEAN, made DATETIME)`)
	h := handle(t, store, "key")
	made := time.Date(2026, 11, 22, 21, 0, 0, 5e8, time.UTC)
	insert, err := h.tx.PrepareContext(h.ctx, "INSERT INTO payments VALUES (?, ?, ?, ?, ?, ?) RETURNING id")
	require.NoError(t, err)
	for i := range 3 {
		var id int64
		require.NoError(t, insert.QueryRow(nil, 1.5, sql.NullString{}, []byte{0, byte(i)}, i == 0, made).Scan(&id))
		require.EqualValues(t, i+1, id)
	}
	result, err := h.tx.Exec("UPDATE payments SET note = :note WHERE id < :id",
		sql.Named("id", 3), sql.Named("note", "tea"))
	require.NoError(t, err)
	changed, err := result.RowsAffected()
	require.NoError(t, err)
	require.EqualValues(t, 2, changed)

	rows, err := h.tx.Query("SELECT id, rate, note, proof, settled, made FROM payments ORDER BY id")
	require.NoError(t, err)
	types, err := rows.ColumnTypes()
	require.NoError(t, err)
	var names []string
	for _, column := range types {
		names = append(names, column.Name()+" "+column.DatabaseTypeName())
	}
	require.Equal(t,
		[]string{"id INTEGER", "rate REAL", "note TEXT", "proof BLOB", "settled BOOLEAN", "made DATETIME"}, names)
	for i := 1; rows.Next(); i++ {
		var id int
		var rate float64
		var note sql.NullString
		var proof []byte
		var settled bool
		var at time.Time
		require.NoError(t, rows.Scan(&id, &rate, &note, &proof, &settled, &at))
		require.Equal(t, i, id)
		require.Equal(t, i < 3, note.Valid)
		require.Equal(t, []byte{0, byte(i - 1)}, proof)
		require.Equal(t, i == 1, settled)
		require.True(t, at.Equal(made))
		var n int // while the rows are open
		require.NoError(t, h.tx.QueryRow("SELECT count(*) FROM payments").Scan(&n))
		require.Equal(t, 3, n)
	}
	require.NoError(t, rows.Err())
	require.ErrorIs(t, h.tx.QueryRow("SELECT 1 WHERE false").Scan(new(int)), sql.ErrNoRows)
	require.NoError(t, h.answers(201))
	require.Equal(t, 3, one[int](t, other, "SELECT count(*) FROM payments"))
	require.Equal(t, "2026-11-22 21:00:00.5+00:00", one[string](t, other, "SELECT made || '' FROM payments"))
}

// A test of a handler gives it a transaction.
func TestWithTx(t *testing.T) {
	t.Parallel()
	_, other := openOrders(t, sqlitestore.Options{})
	_, ok := sqlitestore.Tx(t.Context())
	require.False(t, ok)
	require.False(t, sqlitestore.KeepEffects(t.Context()))
	given, err := other.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	ctx := sqlitestore.WithTx(context.Background(), given)
	tx, ok := sqlitestore.Tx(ctx)
	require.True(t, ok)
	_, err = tx.ExecContext(ctx, "INSERT INTO orders VALUES (1, '')")
	require.NoError(t, err)
	require.False(t, sqlitestore.KeepEffects(ctx))
	require.NoError(t, tx.Commit())
	require.Equal(t, "1", orders(t, other))
}

// A lease comes without a transaction.
func TestNoTransactionWithALease(t *testing.T) {
	t.Parallel()
	_, claim := begun(t, open(t, newPath(t), sqlitestore.Options{}), "key")
	_, ok := sqlitestore.Tx(claim.Context(t.Context()))
	require.False(t, ok)
}
