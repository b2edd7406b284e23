// Readme is a whole service whose records and rows are in a file. README.md shows parts of it. Start it, and send a request:
//
//	curl -i -u alice:secret -H 'Idempotency-Key: order-1' -d amount=4200 localhost:8080
//
// Then stop the program, start it again, and send the request once more: the card is charged once, and there is one row.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/step"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	store, err := sqlitestore.Open(ctx, "payments.db", sqlitestore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Check(ctx); err != nil {
		log.Print(err) // such as: the file is in memory, or readable by all users
	}
	db, err := sql.Open("sqlite", "payments.db")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, charge TEXT)"); err != nil {
		log.Fatal(err)
	}
	idem, err := idempotency.New(store, user, idempotency.Options{Required: true})
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
	if err := errors.Join(server.Shutdown(ctx), idem.Shutdown(ctx), store.Close(), db.Close()); err != nil {
		log.Fatal(err)
	}
}

func pay(w http.ResponseWriter, r *http.Request) {
	charge, err := step.Do(r.Context(), "charge", func(context.Context) (string, error) {
		log.Print("charging the card")
		return "ch_" + r.FormValue("amount"), nil
	})
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	id, err := sqlitestore.DoTx(r.Context(), "book", func(tx *sql.Tx) (int64, error) { // commits row and result together
		result, err := tx.ExecContext(r.Context(), "INSERT INTO payments (charge) VALUES (?)", charge)
		if err != nil {
			return 0, err // rolled back
		}
		return result.LastInsertId()
	})
	if err != nil {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, "payment", id)
}

// user stands for the authentication that you have.
func user(r *http.Request) (string, error) {
	name, _, _ := r.BasicAuth()
	return name, nil
}
