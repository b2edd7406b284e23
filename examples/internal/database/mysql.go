package database

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"log"
	"os"
	"os/exec"

	"github.com/go-sql-driver/mysql"

	"github.com/idempotency-go/idempotency/examples/internal/demo"
	"github.com/idempotency-go/idempotency/internal/servertest"
)

// CreateMySQL makes a database on the server at MYSQL_DSN or, if that is not set, on a private MariaDB. An example that
// ends well drops it.
func CreateMySQL(ctx context.Context) (db *sql.DB, drop func()) {
	dsn, stop := os.Getenv("MYSQL_DSN"), func() {}
	if dsn == "" {
		server, err := servertest.StartMariaDB()
		if errors.Is(err, exec.ErrNotFound) {
			log.Fatalf("%v: install it, or set MYSQL_DSN", err)
		}
		demo.Check(err)
		dsn, stop = server.DSN(), server.Close
	}
	config, err := mysql.ParseDSN(dsn)
	demo.Check(err)
	name := "example_" + rand.Text()
	create := openMySQL(config)
	_, err = create.ExecContext(ctx, "CREATE DATABASE "+name)
	demo.Check(err)
	config.DBName = name
	db = openMySQL(config)
	return db, func() {
		_, err := create.ExecContext(ctx, "DROP DATABASE "+name)
		demo.Check(err)
		demo.Check(errors.Join(db.Close(), create.Close()))
		stop()
	}
}

func openMySQL(config *mysql.Config) *sql.DB {
	connector, err := mysql.NewConnector(config)
	demo.Check(err)
	return sql.OpenDB(connector)
}
