// Command server is the server that the tests of package death kill. The handler of the server charges, and then has an effect.
// The server kills itself at the point that a request names.
package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/guarantees/death"
	"github.com/idempotency-go/idempotency/proof/killtest"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

func main() {
	debug.SetGCPercent(-1) // the process dies before garbage matters
	go dieWithParent()
	if err := runServer(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dieWithParent exits when the parent process has ended, because the parent holds the other end of the standard input.
func dieWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(2)
}

func runServer() error {
	var config death.Config
	if err := json.Unmarshal([]byte(os.Getenv(death.ConfigVariable)), &config); err != nil {
		return err
	}
	pool, err := openPool(config)
	if err != nil {
		return err
	}
	effect, err := newEffect(config)
	if err != nil {
		return err
	}
	m, err := idempotency.New(mortalStore{newStore(config, pool)}, idempotency.SingleUser, newOptions(config))
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(death.ListenerFD, "listener"))
	if err != nil {
		return err
	}
	return http.Serve(listener, makeMortal(m.Handler(newHandler(effect))))
}

// openPool returns a pool without connections yet, or nil if config has no database. The pool does not prepare statements,
// because few connections live long enough to repeat a statement.
func openPool(config death.Config) (*pgxpool.Pool, error) {
	if config.Postgres == "" {
		return nil, nil
	}
	c, err := pgxpool.ParseConfig(config.Postgres)
	if err != nil {
		return nil, err
	}
	c.MaxConns = config.Connections
	c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return pgxpool.NewWithConfig(context.Background(), c)
}

func newStore(config death.Config, pool *pgxpool.Pool) idempotency.Store {
	table := pgxstore.Options{Schema: "public"} // saves the search for the schema when the server starts
	if config.Store == "postgres" {
		return pgxstore.New(pool, table)
	}
	client := redis.NewClient(&redis.Options{Addr: config.Redis, Password: config.Password})
	return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
}

// newOptions returns options with a short lease, because the tests wait for the end of leases.
func newOptions(config death.Config) idempotency.Options {
	opts := idempotency.Options{
		Lease: death.Lease, StoreTimeout: death.Lease, Wait: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	if config.Refuse {
		opts.Abandoned = idempotency.Refuse
	}
	return opts
}

// effect makes one effect for each call. The result is part of the answer.
type effect func(ctx context.Context, op idempotency.Operation, order *order) (result string, err error)

// newEffect returns the effect of the handler: a row, or without config.Rows a line in a file, written by one system call.
func newEffect(config death.Config) (effect, error) {
	if !config.Rows {
		ledger := os.NewFile(death.LedgerFD, "ledger")
		return func(_ context.Context, op idempotency.Operation, _ *order) (string, error) {
			_, err := fmt.Fprintf(ledger, "%s %d\n", op.Key.ID, op.Attempt)
			return rand.Text(), err
		}, nil
	}
	outside, err := openPool(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, op idempotency.Operation, order *order) (string, error) {
		return pgxstore.DoTx(ctx, "book", func(tx pgx.Tx) (string, error) {
			run := tx.Exec
			if config.Reckless {
				run = outside.Exec
			}
			_, err := run(ctx, "INSERT INTO ledger (key, attempt) VALUES ($1, $2)", op.Key.ID, op.Attempt)
			order.dieAt(death.InTransaction)
			return rand.Text(), err
		})
	}, nil
}

func newHandler(effect effect) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		order := orderFrom(r.Context())
		if err := killtest.Charge(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		order.dieAt(death.BeforeEffect)
		order.awaitDeath(r.Context(), death.RenewingBefore)
		result, err := effect(r.Context(), op, order)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		order.dieAt(death.AfterEffect)
		order.awaitDeath(r.Context(), death.RenewedAfter)
		answer := fmt.Sprintln("result", result) // differs for every effect
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	})
}
