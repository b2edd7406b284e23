package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// openSQLite opens a file that already has a table of records. The check comes first because sqlitestore.Open would create a missing
// file or table.
func (a *app) openSQLite(address string) (*openedStore, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(address, "sqlite:"), "//")
	ctx, cancel := context.WithTimeout(context.Background(), a.flags.Timeout)
	defer cancel()
	if err := checkTable(ctx, path); err != nil {
		return nil, err
	}
	store, err := sqlitestore.Open(ctx, path, sqlitestore.Options{})
	if err != nil {
		return nil, &exitError{exitUnknown, err}
	}
	return &openedStore{
		openableStore: store, description: visible.Text("SQLite at " + path), closeClient: func() { _ = store.Close() },
	}, nil
}

// checkTable returns an error if path is no file or has no table of records.
func checkTable(ctx context.Context, path string) error {
	if !isFile(path) {
		return errors.New("SQLite: there is no file at this path: " + path)
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=rw&_pragma=busy_timeout(1000)")
	if err != nil {
		return err
	}
	defer db.Close()
	var tables int
	const query = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'idempotency_records'"
	err = db.QueryRowContext(ctx, query).Scan(&tables)
	switch {
	case err != nil:
		return &exitError{exitUnknown, fmt.Errorf("SQLite: %s: %w", path, err)}
	case tables == 0:
		return errors.New("SQLite: the file has no table idempotency_records: " + path)
	}
	return nil
}
