package probe_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// transactionDecisions are the decisions of [transactionService].
var transactionDecisions = withDecisions(guardedDecisions, map[string]string{
	"marker":          "none",
	"while-running":   "waits",
	"other-content":   "422",
	"key-missing":     "executed",
	"key-empty":       "executed",
	"key-not-ascii":   "accepted",
	"key-quoted":      "another",
	"invalid-request": "free",
	"large-body":      "executed",
	"compressed-body": "415",
})

// transactionService is written by hand: a transaction of PostgreSQL inserts the key, and the charge together with the answer.
// A duplicate waits for the transaction that has inserted its key.
type transactionService struct{ pool *pgxpool.Pool }

const createKeys = `CREATE TABLE keys (
	client text, route text, key text, fingerprint bytea NOT NULL,
	content_type text, location text, answer bytea, status int,
	PRIMARY KEY (client, route, key)
)`

func startTransactions(t *testing.T) sharedData {
	data := startPostgres(t)
	connection, err := pgx.Connect(t.Context(), data.place)
	require.NoError(t, err)
	_, err = connection.Exec(t.Context(), createKeys)
	require.NoError(t, errors.Join(err, connection.Close(t.Context())))
	return data
}

func openTransactions(place string) (http.Handler, error) {
	pool, err := pgxpool.New(context.Background(), place)
	if err != nil {
		return nil, err
	}
	s := &transactionService{pool}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /payments", s.newHandler(answerPayment))
	mux.HandleFunc("PUT /payments", s.newHandler(answerPayment))
	mux.HandleFunc("POST /statements", s.newHandler(answerStatement))
	mux.HandleFunc("POST /failures", answerFailure)
	return mux, nil
}

// keyedRequest is what the service stores of a request.
type keyedRequest struct {
	client, route, key string
	fingerprint        []byte
}

// newHandler returns a handler that charges, and writes the answer with answer.
func (s *transactionService) newHandler(answer func(w http.ResponseWriter, receipt string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		keys := r.Header.Values("Idempotency-Key")
		switch {
		case len(keys) > 1 || len(keys) == 1 && len(keys[0]) > 255:
			http.Error(w, "one key of at most 255 bytes", http.StatusBadRequest)
			return
		case r.Header.Get("Content-Encoding") != "":
			http.Error(w, "no compressed requests", http.StatusUnsupportedMediaType)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 2<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		sum := sha256.Sum256(body)
		stored := keyedRequest{r.Header.Get("Authorization"), r.Method + " " + r.URL.Path, r.Header.Get("Idempotency-Key"), sum[:]}
		r.Body = io.NopCloser(bytes.NewReader(body))
		executed, err := s.execute(r, stored, answer)
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		for name, values := range executed.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(executed.Code)
		_, _ = w.Write(executed.Body.Bytes())
	}
}

// execute returns the answer to a request: the stored answer, or the answer of a new charge.
func (s *transactionService) execute(
	r *http.Request, stored keyedRequest, answer func(http.ResponseWriter, string),
) (executed *httptest.ResponseRecorder, err error) {
	ctx := r.Context()
	executed = httptest.NewRecorder()
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if stored.key != "" {
			inserted, err := tx.Exec(ctx, `INSERT INTO keys (client, route, key, fingerprint) VALUES ($1, $2, $3, $4)
				ON CONFLICT DO NOTHING`, stored.client, stored.route, stored.key, stored.fingerprint)
			if err != nil {
				return err
			}
			if inserted.RowsAffected() == 0 {
				return replay(ctx, tx, stored, executed)
			}
		}
		receipt, ok := chargeRequest(executed, r, func(ctx context.Context, amount int) (string, error) {
			return insertCharge(ctx, tx, amount)
		})
		if !ok {
			return errNotCharged
		}
		answer(executed, receipt)
		_, err := tx.Exec(ctx, `UPDATE keys SET status = $4, content_type = $5, location = $6, answer = $7
			WHERE client = $1 AND route = $2 AND key = $3`, stored.client, stored.route, stored.key,
			executed.Code, executed.Header().Get("Content-Type"), executed.Header().Get("Location"), executed.Body.Bytes())
		return err
	})
	if errors.Is(err, errNotCharged) {
		err = nil
	}
	return executed, err
}

// errNotCharged rolls the transaction back, so that the key is free.
var errNotCharged = errors.New("the request was refused")

// replay writes the stored answer, or refuses another content.
func replay(ctx context.Context, tx pgx.Tx, stored keyedRequest, w *httptest.ResponseRecorder) error {
	var fingerprint, body []byte
	var contentType, location string
	var status int
	err := tx.QueryRow(ctx, `SELECT fingerprint, status, content_type, location, answer FROM keys
		WHERE client = $1 AND route = $2 AND key = $3`, stored.client, stored.route, stored.key).
		Scan(&fingerprint, &status, &contentType, &location, &body)
	if err != nil {
		return err
	}
	if !bytes.Equal(fingerprint, stored.fingerprint) {
		http.Error(w, "the key belongs to another content", http.StatusUnprocessableEntity)
		return nil
	}
	w.Header().Set("Content-Type", contentType)
	if location != "" {
		w.Header().Set("Location", location)
	}
	w.WriteHeader(status)
	_, err = w.Write(body)
	return err
}
