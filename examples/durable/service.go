package main

import (
	"context"
	"io"
	"log"
	"net/http"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/examples/internal/process"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

// serve runs the service until the process is killed. Nothing is to be repaired when it is started again.
func serve(file, bank string) {
	store, err := sqlitestore.Open(context.Background(), file, sqlitestore.Options{})
	demo.Check(err)
	if err := store.Check(context.Background()); err != nil {
		log.Print(err) // such as: a loss of power may forget records
	}
	idem, err := idempotency.New(store, demo.User, idempotency.Options{Required: true})
	demo.Check(err)
	payments := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resp, err := http.Post(bank, "text/plain", r.Body) // charges a card
		if err != nil {
			http.Error(w, "no bank", http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		w.WriteHeader(http.StatusCreated)
		_, _ = io.Copy(w, resp.Body)
	}))
	process.Serve(demo.Authenticate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		payments.ServeHTTP(mortal{w}, r)
	})))
}

// answering is where the first process is killed.
const answering = "answering"

// mortal writes an answer that is stored already.
type mortal struct{ http.ResponseWriter }

func (m mortal) WriteHeader(status int) {
	process.HaltAt(answering)
	m.ResponseWriter.WriteHeader(status)
}
