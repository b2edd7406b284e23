package compat_test

import (
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
	"github.com/idempotency-go/idempotency/internal/servertest"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// gormPayment has columns of the types that GORM makes of Go's.
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

// GORM works in the transaction of a handler, once for each key, and leaves nothing behind when the handler has returned.
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
	for name, c := range gormHandlers {
		t.Run(name, func(t *testing.T) { c.run(t, pool, db, name) })
	}
}

// gormHandler is what a handler does once it has made a payment, and what comes of it.
type gormHandler struct {
	then     func(t *testing.T, db *gorm.DB, made *gormPayment)
	status   int
	payments int64 // that are there after the first request, and after a retry
	runs     int   // of the handler for both
}

var gormHandlers = map[string]gormHandler{
	"reads and changes": {gormReads, http.StatusCreated, 1, 1},
	"undoes a part":     {gormUndoesAPart, http.StatusCreated, 1, 1},
	"commits parts":     {gormCommitsParts, http.StatusCreated, 2, 1},
	"violates a constraint": {func(t *testing.T, db *gorm.DB, made *gormPayment) {
		err := db.Create(&gormPayment{Key: made.Key}).Error
		var refused *pgconn.PgError
		assert.True(t, errors.As(err, &refused) && refused.Code == "23505", "%v", err)
	}, http.StatusConflict, 0, 1},
	"refuses": {func(*testing.T, *gorm.DB, *gormPayment) {}, http.StatusUnprocessableEntity, 0, 1},
	"fails":   {func(*testing.T, *gorm.DB, *gormPayment) {}, http.StatusServiceUnavailable, 0, 2},
	"rolls back": {func(t *testing.T, db *gorm.DB, _ *gormPayment) {
		assert.NoError(t, db.Rollback().Error)
		assert.Error(t, db.Create(&gormPayment{Key: "late"}).Error)
	}, http.StatusConflict, 0, 1},
	"ends the transaction": {func(t *testing.T, db *gorm.DB, _ *gormPayment) {
		assert.ErrorIs(t, db.Commit().Error, pgxstore.ErrCommit)
	}, http.StatusConflict, 0, 1},
}

func (c gormHandler) run(t *testing.T, pool *pgxpool.Pool, db *gorm.DB, key string) {
	runs := 0
	m := newMiddleware(t, pgxstore.NewTx(pool, pgxstore.Options{}), idempotency.Options{})
	h := m.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs++
		tx, ok := pgxstore.SQLTx(r.Context())
		assert.True(t, ok)
		db := db.Session(&gorm.Session{NewDB: true, Context: r.Context()})
		db.Statement.ConnPool = tx
		note := "first"
		made := gormPayment{Key: key, Amount: 700, Rate: 1.25, Note: &note, Receipt: []byte{1, 2}, Settled: true}
		assert.NoError(t, db.Create(&made).Error)
		assert.NotZero(t, made.ID)
		c.then(t, db, &made)
		w.WriteHeader(c.status)
	}))
	post := func() *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/payments", nil)
		r.Header.Set("Idempotency-Key", strings.ReplaceAll(key, " ", "-"))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	first, retry := post(), post()
	require.Equal(t, []int{c.status, c.status}, []int{first.Code, retry.Code})
	require.Equal(t, c.runs == 1, retry.Header().Get(marker) == "true")
	require.Equal(t, c.runs, runs)
	var payments int64
	require.NoError(t, db.Model(&gormPayment{}).Where("key LIKE ?", key+"%").Count(&payments).Error)
	require.Equal(t, c.payments, payments)
}

func gormReads(t *testing.T, db *gorm.DB, made *gormPayment) {
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
}

func gormUndoesAPart(t *testing.T, db *gorm.DB, made *gormPayment) {
	err := db.Transaction(func(part *gorm.DB) error { return part.Create(&gormPayment{Key: made.Key}).Error })
	assert.Error(t, err)
	assert.NoError(t, db.SavePoint("here").Error)
	assert.NoError(t, db.Delete(made).Error)
	assert.NoError(t, db.RollbackTo("here").Error)
}

func gormCommitsParts(t *testing.T, db *gorm.DB, made *gormPayment) {
	assert.NoError(t, db.Transaction(func(part *gorm.DB) error {
		return part.Transaction(func(inner *gorm.DB) error {
			return inner.CreateInBatches([]*gormPayment{{Key: made.Key + " 2"}}, 10).Error
		})
	}))
}
