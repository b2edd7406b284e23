// Readme is the program that README.md shows.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/sqlitestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	store, err := sqlitestore.Open(ctx, "idempotency.db", sqlitestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Check(ctx); err != nil {
		log.Print(err) // such as: the file is in memory, or readable by all users
	}
	idem, err := idempotency.New(store, user, idempotency.Options{})
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "localhost:8080", Handler: idem.Handler(http.HandlerFunc(pay))}
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()
	<-ctx.Done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := errors.Join(server.Shutdown(ctx), idem.Shutdown(ctx), store.Close()); err != nil {
		log.Fatal(err)
	}
}

func pay(w http.ResponseWriter, r *http.Request) {
	log.Print("charging the card")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, "charged", r.FormValue("amount"))
}

// user stands for the authentication that you have.
func user(r *http.Request) (string, error) {
	name, _, _ := r.BasicAuth()
	return name, nil
}
