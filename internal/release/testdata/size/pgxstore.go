package main

import (
	"context"
	"io"
	"log"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

func main() {
	pool, err := pgxpool.New(context.Background(), "")
	if err != nil {
		log.Fatal(err)
	}
	store := pgxstore.New(pool, pgxstore.Options{})
	idem, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe("localhost:8080", idem.Handler(http.HandlerFunc(pay))))
}

func user(r *http.Request) (string, error) { return r.Header.Get("X-User"), nil }

func pay(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "paid") }
