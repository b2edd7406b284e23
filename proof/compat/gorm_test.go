package compat_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/servertest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// gormPayment has columns of the types that GORM derives from Go types.
type gormPayment struct {
	ID        uint
	Key       string `gorm:"uniqueIndex"`
	Amount    int64
	Rate      float64
	Note      *string
	Receipt   []byte
	Settled   bool
	CreatedAt time.Time
	DeletedAt gorm.DeletedAt
}

// GORM works in the transaction of a step, and a step works in a transaction of GORM. In both cases the effects
// happen once for each key.
func TestGORM(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), servertest.Postgres(t).URL())
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, pgxstore.Migrate(t.Context(), pool, pgxstore.Options{}))
	conns := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { assert.NoError(t, conns.Close()) })
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: conns}), &gorm.Config{Logger: logger.Discard})
	require.NoError(t, err)
	require.NoError(t, db.AutoMigrate(&gormPayment{}))
	for name, c := range gormSteps {
		for form, step := range map[string]gormForm{"of the store": inTxOfStore, "of GORM": inTxOfGORM} {
			t.Run(name+" "+form, func(t *testing.T) { c.run(t, pool, db, step) })
		}
	}
}

// gormForm runs a step in a transaction, with GORM.
type gormForm func(ctx context.Context, db *gorm.DB, work func(tx *gorm.DB) (uint, error)) (uint, error)

func inTxOfStore(ctx context.Context, db *gorm.DB, work func(tx *gorm.DB) (uint, error)) (uint, error) {
	return pgxstore.DoSQLTx(ctx, "pay", func(tx *sql.Tx) (uint, error) {
		db := db.Session(&gorm.Session{NewDB: true, Context: ctx})
		db.Statement.ConnPool = tx
		return work(db)
	})
}

func inTxOfGORM(ctx context.Context, db *gorm.DB, work func(tx *gorm.DB) (uint, error)) (id uint, err error) {
	err = db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		id, err = pgxstore.DoInSQLTx(ctx, tx.Statement.ConnPool, "pay", func() (uint, error) { return work(tx) })
		return err
	})
	return id, err
}

// gormStep is the behaviour of a step after its payment, and the expected results.
type gormStep struct {
	then     func(t *testing.T, db *gorm.DB, made *gormPayment) error
	payments int64 // payments after the first request, and after a retry
	runs     int   // runs of the step for both requests
}

var errStep = errors.New("the step fails")

var gormSteps = map[string]gormStep{
	"reads and changes": {gormReads, 1, 1},
	"undoes a part":     {gormUndoesAPart, 1, 1},
	"commits parts":     {gormCommitsParts, 2, 1},
	"violates a constraint": {func(t *testing.T, db *gorm.DB, made *gormPayment) error {
		err := db.Create(&gormPayment{Key: made.Key}).Error
		var refused *pgconn.PgError
		assert.True(t, errors.As(err, &refused) && refused.Code == "23505", "%v", err)
		return nil // the step fails nevertheless
	}, 0, 2},
	"fails": {func(*testing.T, *gorm.DB, *gormPayment) error { return errStep }, 0, 2},
}

// run makes a handler fail after its step, and then succeed.
func (c gormStep) run(t *testing.T, pool *pgxpool.Pool, db *gorm.DB, step gormForm) {
	runs, status, key := 0, http.StatusServiceUnavailable, strings.ReplaceAll(t.Name(), " ", "-")
	m := newMiddleware(t, pgxstore.New(pool, pgxstore.Options{}), idempotency.Options{})
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := step(r.Context(), db, func(tx *gorm.DB) (uint, error) {
			runs++
			note := "first"
			made := gormPayment{Key: key, Amount: 700, Rate: 1.25, Note: &note, Receipt: []byte{1, 2}, Settled: true}
			assert.NoError(t, tx.Create(&made).Error)
			return made.ID, c.then(t, tx, &made)
		})
		assert.Equal(t, c.payments > 0, err == nil, "%v", err)
		assert.Equal(t, c.payments > 0, id > 0)
		w.WriteHeader(status)
	}))
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, status, w.Code)
		status = http.StatusCreated
	}
	require.Equal(t, c.runs, runs)
	var payments int64
	require.NoError(t, db.Model(&gormPayment{}).Where("key LIKE ?", key+"%").Count(&payments).Error)
	require.Equal(t, c.payments, payments)
}

func gormReads(t *testing.T, db *gorm.DB, made *gormPayment) error {
	var found gormPayment
	assert.NoError(t, db.First(&found, made.ID).Error)
	assert.WithinDuration(t, made.CreatedAt, found.CreatedAt, time.Millisecond)
	found.CreatedAt = made.CreatedAt
	assert.Equal(t, *made, found)
	assert.NoError(t, db.Model(&found).Updates(map[string]any{"note": nil, "amount": gorm.Expr("amount + ?", 1)}).Error)
	var shown map[string]any
	assert.NoError(t, db.Model(&gormPayment{}).Select("amount", "note").Where("id = ?", made.ID).Take(&shown).Error)
	assert.Equal(t, map[string]any{"amount": int64(701), "note": nil}, shown)
	assert.ErrorIs(t, db.First(&gormPayment{}, -1).Error, gorm.ErrRecordNotFound)
	rows, err := db.Model(&gormPayment{}).Rows()
	assert.NoError(t, err)
	for rows.Next() {
		assert.NoError(t, db.ScanRows(rows, &found))
	}
	assert.NoError(t, rows.Close())
	return nil
}

func gormUndoesAPart(t *testing.T, db *gorm.DB, made *gormPayment) error {
	err := db.Transaction(func(part *gorm.DB) error { return part.Create(&gormPayment{Key: made.Key}).Error })
	assert.Error(t, err)
	assert.NoError(t, db.SavePoint("here").Error)
	assert.NoError(t, db.Delete(made).Error)
	assert.NoError(t, db.RollbackTo("here").Error)
	return nil
}

func gormCommitsParts(t *testing.T, db *gorm.DB, made *gormPayment) error {
	assert.NoError(t, db.Transaction(func(part *gorm.DB) error {
		return part.Transaction(func(inner *gorm.DB) error {
			return inner.CreateInBatches([]*gormPayment{{Key: made.Key + " 2"}}, 10).Error
		})
	}))
	return nil
}
