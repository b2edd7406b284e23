// Package database gives each run of an example its own schema in the PostgreSQL at DATABASE_URL. If the variable is not set,
// the package starts a private server.
package database

import (
	"context"
	"crypto/rand"
	"errors"
	"log"
	"os"
	"os/exec"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/proof/servertest"
)

// Create creates the schema, and returns a pool of connections to the schema. After Create, Connect connects to the same
// schema, in this process and in its children. An example calls drop when it ends well; the schema of a failed example may
// show why the example failed.
func Create(ctx context.Context) (pool *pgxpool.Pool, drop func()) {
	stop := func() {}
	if os.Getenv("DATABASE_URL") == "" {
		server, err := servertest.StartPostgres()
		if errors.Is(err, exec.ErrNotFound) {
			log.Fatalf("%v: install it, or set DATABASE_URL", err)
		}
		demo.Check(err)
		demo.Check(os.Setenv("DATABASE_URL", server.URL()))
		stop = server.Close
	}
	schema := "example_" + rand.Text()
	demo.Check(os.Setenv("DATABASE_SCHEMA", schema))
	pool = Connect(ctx)
	_, err := pool.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize())
	demo.Check(err)
	return pool, func() {
		_, err := pool.Exec(ctx, "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		demo.Check(err)
		pool.Close()
		stop()
	}
}

// Connect returns a pool of connections to the schema.
func Connect(ctx context.Context) *pgxpool.Pool {
	pool, err := pgxpool.NewWithConfig(ctx, Config())
	demo.Check(err)
	return pool
}

// Config returns the configuration of a pool of connections to the schema.
func Config() *pgxpool.Config {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	demo.Check(err)
	config.ConnConfig.RuntimeParams["search_path"] = pgx.Identifier{os.Getenv("DATABASE_SCHEMA")}.Sanitize()
	return config
}
