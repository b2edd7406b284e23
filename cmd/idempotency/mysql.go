package main

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/mysqlstore"
)

// openMySQL opens a table of MySQL or MariaDB. The URL may have the parameters of the driver.
func (a *app) openMySQL(address string) (*openedStore, error) {
	config, err := a.parseMySQLURL(address)
	if err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("the URL of MySQL: %w", err)
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(2)
	return &openedStore{
		openableStore: mysqlstore.NewTable(db, mysqlstore.Options{Table: a.flags.Table}), closeClient: func() { _ = db.Close() },
		description: visible.Text(fmt.Sprintf("MySQL at %s, database %s", config.Addr, config.DBName)),
	}, nil
}

func (a *app) parseMySQLURL(address string) (*mysql.Config, error) {
	// The error is without the cause, whose text may contain the password.
	unreadable := errors.New("the URL of MySQL cannot be read: want mysql://user@host/database")
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return nil, unreadable
	}
	config, err := mysql.ParseDSN("/?" + u.RawQuery)
	if err != nil {
		return nil, unreadable
	}
	password, _ := a.lookupEnv("MYSQL_PWD")
	inURL, _ := u.User.Password()
	config.User, config.Passwd = u.User.Username(), cmp.Or(inURL, password)
	config.Net, config.Addr = "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "3306"))
	config.DBName = strings.TrimPrefix(u.Path, "/")
	config.Logger = &mysql.NopLogger{} // the error has the same information
	return config, nil
}
