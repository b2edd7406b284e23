package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// openPostgres opens a table. What the URL does not say comes from the variables and files of libpq.
func (a *app) openPostgres(address string) (*opened, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil { // its text may have a part of the URL
		return nil, errors.New("the URL of PostgreSQL, or a variable or file of libpq, cannot be read")
	}
	conn := config.ConnConfig
	a.secrets.add(conn.Password) // perhaps of ~/.pgpass
	if conn.RuntimeParams["application_name"] == "" {
		conn.RuntimeParams["application_name"] = "idempotency"
	}
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	table := pgxstore.NewTable(pool, pgxstore.Options{
		Schema: a.line.Schema, Table: a.line.Table, PartitionDays: a.line.PartitionDays,
	})
	return &opened{
		store: table, users: table.LargestUsers, close: pool.Close,
		name: visible.Text(fmt.Sprintf("PostgreSQL at %s:%d, database %s", conn.Host, conn.Port, conn.Database)),
	}, nil
}
