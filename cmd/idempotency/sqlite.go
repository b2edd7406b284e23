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

// openSQLite opens a file that has records: sqlitestore would make what is missing.
func (a *app) openSQLite(address string) (*opened, error) {
	path := strings.TrimPrefix(strings.TrimPrefix(address, "sqlite:"), "//")
	ctx, cancel := context.WithTimeout(context.Background(), a.line.Timeout)
	defer cancel()
	if err := hasRecords(ctx, path); err != nil {
		return nil, err
	}
	s, err := sqlitestore.Open(ctx, path, sqlitestore.Options{})
	if err != nil {
		return nil, &failure{exitUnknown, err}
	}
	return &opened{store: s, name: visible.Text("SQLite at " + path), close: func() { _ = s.Close() }}, nil
}

// hasRecords returns an error if a file has no table with records, or is none.
func hasRecords(ctx context.Context, path string) error {
	if !isFile(path) {
		return errors.New("SQLite: there is no file at this path: " + path)
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?mode=rw&_pragma=busy_timeout(1000)")
	if err != nil {
		return err
	}
	defer db.Close()
	var tables int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'idempotency_records'").Scan(&tables)
	switch {
	case err != nil:
		return &failure{exitUnknown, fmt.Errorf("SQLite: %s: %w", path, err)}
	case tables == 0:
		return errors.New("SQLite: the file has no table idempotency_records: " + path)
	}
	return nil
}
