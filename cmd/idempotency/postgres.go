package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// openPostgres opens a table. Missing settings come from the environment variables and files of libpq.
func (a *app) openPostgres(address string) (*openedStore, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil { // the text of err may contain a part of the URL
		return nil, errors.New("the URL of PostgreSQL, or a variable or file of libpq, cannot be read")
	}
	conn := config.ConnConfig
	a.secrets.addValue(conn.Password) // may come from ~/.pgpass
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = "idempotency"
	}
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	table := pgxstore.NewTable(pool, pgxstore.Options{
		Schema: a.flags.Schema, Table: a.flags.Table, PartitionDays: a.flags.PartitionDays,
	})
	return &openedStore{
		openableStore: table, loadLargestUsers: table.LargestUsers, closeClient: pool.Close,
		description: visible.Text(fmt.Sprintf("PostgreSQL at %s:%d, database %s", conn.Host, conn.Port, conn.Database)),
	}, nil
}
