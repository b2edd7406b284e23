package benchmark

import (
	"context"
	"database/sql"
	"net/http"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// The subjects whose handlers write a row in PostgreSQL.
var (
	// PostgresByHand is what a team writes that has no library: the key, the row and the answer in one transaction.
	PostgresByHand = &Subject{Name: "by hand in one transaction, PostgreSQL", Store: RowsInPostgres,
		Lacks: leastLacks + "; nobody deletes what has expired; a connection is held while the handler runs",
		Open: func(b *Backends, app *App) (*Target, error) {
			return overHand(pgxDatabase{b.Postgres}, app)
		}}

	PostgresRows = &Subject{Name: "idempotency, PostgreSQL, DoTx", Store: RowsInPostgres, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overRows(pgxDatabase{b.Postgres}, pgxstore.New(b.Postgres, pgxstore.Options{}), app)
		}}

	// PostgresUnique writes the row in a transaction of the handler, which runs again after a crash.
	PostgresUnique = &Subject{Name: "idempotency, PostgreSQL, unique constraint", Store: RowsInPostgres, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overUnique(pgxDatabase{b.Postgres}, pgxstore.New(b.Postgres, pgxstore.Options{}), app)
		}}
)

// database is where handlers write a row for each key.
type database interface {
	create(ctx context.Context, statements ...string) error

	// transact calls do in a transaction.
	transact(ctx context.Context, do func(tx rowTx) error) error

	// step calls do in a step in a transaction.
	step(ctx context.Context, do func(tx rowTx) error) error
}

// rowTx is a transaction.
type rowTx interface {
	// exec returns how many rows a statement has changed.
	exec(ctx context.Context, statement string, args ...any) (int64, error)

	// load reads the record of a key that is written by hand.
	load(ctx context.Context, statement, key string) (fingerprint, answer []byte, err error)
}

// The statements, which PostgreSQL, MariaDB and SQLite understand.
const (
	createRows   = "CREATE TABLE IF NOT EXISTS payments (id VARCHAR(100) NOT NULL, amount BIGINT NOT NULL)"
	createUnique = "CREATE TABLE IF NOT EXISTS unique_payments (id VARCHAR(100) PRIMARY KEY, amount BIGINT NOT NULL)"
	insertRow    = "INSERT INTO payments (id, amount) VALUES (?, ?)"
	insertUnique = "INSERT INTO unique_payments (id, amount) VALUES (?, ?)"

	createHand = "CREATE TABLE IF NOT EXISTS by_hand (id VARCHAR(100) PRIMARY KEY, fingerprint VARBINARY(32) NOT NULL, answer LONGBLOB)"
	claimHand  = "INSERT INTO by_hand (id, fingerprint) VALUES (?, ?) ON CONFLICT (id) DO NOTHING"
	loadHand   = "SELECT fingerprint, answer FROM by_hand WHERE id = ?"
	setHand    = "UPDATE by_hand SET answer = ? WHERE id = ?"
)

// writing is a handler that writes a row, and then answers as the app does.
type writing struct {
	app   *App
	write func(ctx context.Context, key string) error
}

func (h writing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h.write(r.Context(), r.Header[keyHeader][0]); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	h.app.ServeHTTP(w, r)
}

// overRows is the target whose handler writes its row in a step in a transaction.
func overRows(db database, store idempotency.Store, app *App) (*Target, error) {
	if err := db.create(context.Background(), createRows); err != nil {
		return nil, err
	}
	return overLibrary(store, writing{app, func(ctx context.Context, key string) error {
		return db.step(ctx, func(tx rowTx) error {
			_, err := tx.exec(ctx, insertRow, key, 7)
			return err
		})
	}})
}

// overUnique is the target whose handler writes its row in a transaction of its own. A constraint allows the row once.
func overUnique(db database, store idempotency.Store, app *App) (*Target, error) {
	if err := db.create(context.Background(), createUnique); err != nil {
		return nil, err
	}
	return overLibrary(store, writing{app, func(ctx context.Context, key string) error {
		return db.transact(ctx, func(tx rowTx) error {
			_, err := tx.exec(ctx, insertUnique, key, 7)
			return err
		})
	}})
}

// overHand is the target of a handler that keeps key, row and answer in one transaction.
func overHand(db database, app *App) (*Target, error) {
	if err := db.create(context.Background(), createRows, createHand); err != nil {
		return nil, err
	}
	return NetHTTP(&handWritten{db, app}), nil
}

// handWritten claims the key by a row that other transactions with this key wait for.
type handWritten struct {
	db  database
	app *App
}

func (h *handWritten) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := leastCalls.Get().(*leastCall)
	c.w = w
	defer c.free()
	if err := c.read(r); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	state, err := h.execute(r, c)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusServiceUnavailable)
	case state == reused:
		w.WriteHeader(http.StatusConflict)
	case state == done:
		c.replay()
	default:
		w.WriteHeader(c.made.status)
		_, _ = w.Write(c.made.body)
	}
}

func (h *handWritten) execute(r *http.Request, c *leastCall) (state leastState, err error) {
	ctx, key := r.Context(), r.Header[keyHeader][0]
	err = h.db.transact(ctx, func(tx rowTx) error {
		n, err := tx.exec(ctx, claimHand, key, c.fingerprint[:])
		if err != nil {
			return err
		}
		if n == 0 {
			state, err = c.find(ctx, tx, key)
			return err
		}
		if _, err := tx.exec(ctx, insertRow, key, 7); err != nil {
			return err
		}
		c.begin()
		c.made = leastAnswer{fields: c.made.fields[:0], body: c.made.body[:0]}
		c.unread.r.Reset(c.request)
		r.Body = &c.unread
		h.app.ServeHTTP(c, r)
		c.encode()
		_, err = tx.exec(ctx, setHand, c.record[leastHead:], key)
		return err
	})
	return state, err
}

// find reads the answer that is stored.
func (c *leastCall) find(ctx context.Context, tx rowTx, key string) (leastState, error) {
	fingerprint, answer, err := tx.load(ctx, loadHand, key)
	switch {
	case err != nil:
		return 0, err
	case string(fingerprint) != string(c.fingerprint[:]):
		return reused, nil
	}
	rest := c.decode(string(answer))
	c.found.body = answer[len(answer)-len(rest):]
	return done, nil
}

// pgxDatabase is PostgreSQL.
type pgxDatabase struct{ pool *pgxpool.Pool }

func (d pgxDatabase) create(ctx context.Context, statements ...string) error {
	types := strings.NewReplacer("VARBINARY(32)", "bytea", "LONGBLOB", "bytea")
	_, err := d.pool.Exec(ctx, types.Replace(strings.Join(statements, ";")))
	return err
}

func (d pgxDatabase) transact(ctx context.Context, do func(tx rowTx) error) error {
	return pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error { return do(pgxRowTx{tx}) })
}

func (d pgxDatabase) step(ctx context.Context, do func(tx rowTx) error) error {
	_, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (int, error) { return 7, do(pgxRowTx{tx}) })
	return err
}

type pgxRowTx struct{ tx pgx.Tx }

func (t pgxRowTx) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, numbered[statement], args...)
	return tag.RowsAffected(), err
}

func (t pgxRowTx) load(ctx context.Context, statement, key string) (fingerprint, answer []byte, err error) {
	err = t.tx.QueryRow(ctx, numbered[statement], key).Scan(&fingerprint, &answer)
	return fingerprint, answer, err
}

// numbered has the statements with the parameters of PostgreSQL.
var numbered = func() map[string]string {
	all := make(map[string]string)
	for _, statement := range []string{insertRow, insertUnique, claimHand, loadHand, setHand} {
		parts := strings.Split(statement, "?")
		for i := range len(parts) - 1 {
			parts[i] += "$" + strconv.Itoa(i+1)
		}
		all[statement] = strings.Join(parts, "")
	}
	return all
}()

// sqlDatabase is MariaDB or SQLite.
type sqlDatabase struct {
	db      *sql.DB
	doTx    func(ctx context.Context, name string, fn func(tx *sql.Tx) (int, error)) (int, error)
	dialect *strings.Replacer
}

// ofMariaDB and ofSQLite are what differs from the statements above.
var (
	ofMariaDB = strings.NewReplacer("ON CONFLICT (id) DO NOTHING", "ON DUPLICATE KEY UPDATE id = id")
	ofSQLite  = strings.NewReplacer()
)

func (d sqlDatabase) create(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := d.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (d sqlDatabase) transact(ctx context.Context, do func(tx rowTx) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // has no effect after the commit
	if err := do(sqlRowTx{tx, d.dialect}); err != nil {
		return err
	}
	return tx.Commit()
}

func (d sqlDatabase) step(ctx context.Context, do func(tx rowTx) error) error {
	_, err := d.doTx(ctx, "book", func(tx *sql.Tx) (int, error) { return 7, do(sqlRowTx{tx, d.dialect}) })
	return err
}

type sqlRowTx struct {
	tx      *sql.Tx
	dialect *strings.Replacer
}

func (t sqlRowTx) exec(ctx context.Context, statement string, args ...any) (int64, error) {
	result, err := t.tx.ExecContext(ctx, t.dialect.Replace(statement), args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (t sqlRowTx) load(ctx context.Context, statement, key string) (fingerprint, answer []byte, err error) {
	err = t.tx.QueryRowContext(ctx, statement, key).Scan(&fingerprint, &answer)
	return fingerprint, answer, err
}
