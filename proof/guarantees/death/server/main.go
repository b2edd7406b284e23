// Command server is what the tests of package death kill. It guards a handler that charges and then has an effect, and kills
// itself where a request says so.
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
	debug.SetGCPercent(-1) // nobody lives that long here
	go dieWithParent()
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dieWithParent waits for the end of the process that holds the other end of the standard input.
func dieWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(2)
}

func serve() error {
	var config death.Config
	if err := json.Unmarshal([]byte(os.Getenv(death.ConfigVariable)), &config); err != nil {
		return err
	}
	pool, err := connect(config)
	if err != nil {
		return err
	}
	effect, err := newEffect(config)
	if err != nil {
		return err
	}
	m, err := idempotency.New(mortalStore{open(config, pool)}, idempotency.SingleUser, options(config))
	if err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(death.ListenerFD, "listener"))
	if err != nil {
		return err
	}
	return http.Serve(listener, mortal(m.Handler(handler(effect))))
}

// connect makes no connection yet. Statements are not prepared: few connections live to use one twice.
func connect(config death.Config) (*pgxpool.Pool, error) {
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

func open(config death.Config, pool *pgxpool.Pool) idempotency.Store {
	table := pgxstore.Options{Schema: "public"} // which the server need not look for when it starts
	if config.Store == "postgres" {
		return pgxstore.New(pool, table)
	}
	client := redis.NewClient(&redis.Options{Addr: config.Redis, Password: config.Password})
	return idempotency.NewRedisStore(client, idempotency.RedisOptions{})
}

// options has short leases, because the tests wait for them.
func options(config death.Config) idempotency.Options {
	opts := idempotency.Options{
		Lease: death.Lease, StoreTimeout: death.Lease, Wait: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	if config.Refuse {
		opts.Abandoned = idempotency.Refuse
	}
	return opts
}

// effect takes place once for each call. Its result is part of the answer.
type effect func(ctx context.Context, op idempotency.Operation, order *order) (result string, err error)

// newEffect returns what the handler does. Without rows it is a line in a file, which one system call writes.
func newEffect(config death.Config) (effect, error) {
	if !config.Rows {
		ledger := os.NewFile(death.LedgerFD, "ledger")
		return func(_ context.Context, op idempotency.Operation, _ *order) (string, error) {
			_, err := fmt.Fprintf(ledger, "%s %d\n", op.Key.ID, op.Attempt)
			return rand.Text(), err
		}, nil
	}
	outside, err := connect(config)
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
			order.at(death.InTransaction)
			return rand.Text(), err
		})
	}, nil
}

func handler(effect effect) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := idempotency.FromContext(r.Context())
		order := orderIn(r.Context())
		if err := killtest.Charge(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		order.at(death.BeforeEffect)
		order.await(r.Context(), death.RenewingBefore)
		result, err := effect(r.Context(), op, order)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		order.at(death.AfterEffect)
		order.await(r.Context(), death.RenewedAfter)
		answer := fmt.Sprintln("result", result) // no two effects give the same one
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, answer)
	})
}
