package benchmark

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// The subjects whose handlers write a row in PostgreSQL.
var (
	// PostgresByHand keeps the key, the row and the answer in one transaction, as a team without a library would.
	PostgresByHand = &Subject{Name: "by hand in one transaction, PostgreSQL", Store: RowsInPostgres,
		Lacks: leastLacks + "; nobody deletes what has expired; a connection is held while the handler runs",
		Open: func(b *Backends, app *App) (*Target, error) {
			return NetHTTP(&handWritten{b.Postgres, app}), createTables(b)
		}}

	// PostgresRows writes the row in a step in a transaction.
	PostgresRows = newRowSubject("idempotency, PostgreSQL, DoTx", func(ctx context.Context, _ *Backends, key string) error {
		_, err := pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, insertRow, key)
			return 7, err
		})
		return err
	})

	// PostgresUnique writes the row in a transaction of the handler. A constraint allows the row once.
	PostgresUnique = newRowSubject("idempotency, PostgreSQL, unique constraint",
		func(ctx context.Context, b *Backends, key string) error {
			return pgx.BeginFunc(ctx, b.Postgres, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insertUnique, key)
				return err
			})
		})
)

const (
	createRows = `
CREATE TABLE IF NOT EXISTS payments (id text NOT NULL, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS unique_payments (id text PRIMARY KEY, amount bigint NOT NULL);
CREATE TABLE IF NOT EXISTS by_hand (id text PRIMARY KEY, fingerprint bytea NOT NULL, answer bytea)`

	insertRow    = "INSERT INTO payments (id, amount) VALUES ($1, 7)"
	insertUnique = "INSERT INTO unique_payments (id, amount) VALUES ($1, 7)"

	claimByHand = "INSERT INTO by_hand (id, fingerprint) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING"
	loadByHand  = "SELECT fingerprint, answer FROM by_hand WHERE id = $1"
	setByHand   = "UPDATE by_hand SET answer = $2 WHERE id = $1"
)

func createTables(b *Backends) error {
	_, err := b.Postgres.Exec(context.Background(), createRows)
	return err
}

// newRowSubject returns a subject of the library, with a handler that calls write before app answers.
func newRowSubject(name string, write func(ctx context.Context, b *Backends, key string) error) *Subject {
	return &Subject{Name: name, Store: RowsInPostgres, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) {
			if err := createTables(b); err != nil {
				return nil, err
			}
			handler := func(w http.ResponseWriter, r *http.Request) {
				if err := write(r.Context(), b, r.Header[keyHeader][0]); err != nil {
					http.Error(w, err.Error(), http.StatusServiceUnavailable)
					return
				}
				app.ServeHTTP(w, r)
			}
			return newLibraryTarget(b.Records[InPostgres].Store, http.HandlerFunc(handler))
		}}
}

// handWritten claims the key by inserting a row. A concurrent transaction with the key waits until the row is committed.
type handWritten struct {
	pool *pgxpool.Pool
	app  *App
}

func (h *handWritten) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := leastCalls.Get().(*leastCall)
	c.responseWriter = w
	defer c.returnToPool()
	if err := c.readRequest(r); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	state, err := h.executeInTx(r, c)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusServiceUnavailable)
	case state == stateReused:
		w.WriteHeader(http.StatusConflict)
	case state == stateDone:
		c.replayAnswer()
	default:
		w.WriteHeader(c.newAnswer.status)
		_, _ = w.Write(c.newAnswer.body)
	}
}

func (h *handWritten) executeInTx(r *http.Request, c *leastCall) (state leastState, err error) {
	ctx, key := r.Context(), r.Header[keyHeader][0]
	err = pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, claimByHand, key, c.fingerprint[:])
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			state, err = c.loadAnswer(ctx, tx, key)
			return err
		}
		if _, err := tx.Exec(ctx, insertRow, key); err != nil {
			return err
		}
		c.encodeClaim()
		c.newAnswer = leastAnswer{headerFields: c.newAnswer.headerFields[:0], body: c.newAnswer.body[:0]}
		c.unreadBody.reader.Reset(c.requestBody)
		r.Body = &c.unreadBody
		h.app.ServeHTTP(c, r)
		c.encodeAnswer()
		_, err = tx.Exec(ctx, setByHand, key, c.encodedRecord[leastHeadSize:])
		return err
	})
	return state, err
}

// loadAnswer reads the stored answer.
func (c *leastCall) loadAnswer(ctx context.Context, tx pgx.Tx, key string) (leastState, error) {
	var fingerprint, answer []byte
	err := tx.QueryRow(ctx, loadByHand, key).Scan(&fingerprint, &answer)
	switch {
	case err != nil:
		return 0, err
	case string(fingerprint) != string(c.fingerprint[:]):
		return stateReused, nil
	}
	body := c.decodeAnswer(string(answer))
	c.storedAnswer.body = answer[len(answer)-len(body):]
	return stateDone, nil
}
