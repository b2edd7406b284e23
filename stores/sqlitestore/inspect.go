package sqlitestore

import (
	"context"
	"database/sql"
	"strings"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/internal/sqlstore"
)

var _ idempotency.Resolver = (*Store)(nil)

// Inspect implements [idempotency.Inspector]. Inspect reads without waiting for writers.
func (s *Store) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return s.InspectOperation(ctx, key.OperationID())
}

// InspectOperation implements [idempotency.Inspector], as Inspect does.
func (s *Store) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	seen, err := s.readers.readSeen(ctx, operation)
	if err != nil {
		return idempotency.Entry{Operation: operation}, wrapFailure("inspect", err)
	}
	seen.Now = s.writer.nowMicros()
	entry, err := seen.Entry(operation)
	return entry, wrapFailure("inspect", err)
}

// Forget implements [idempotency.Inspector]. Forget waits for its turn to write.
func (s *Store) Forget(ctx context.Context, entry idempotency.Entry) error {
	return sqlstore.Forget(ctx, leases{s}, entry)
}

// Resolve implements [idempotency.Resolver]. Resolve waits for its turn to write.
func (s *Store) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	return sqlstore.Resolve(ctx, leases{s}, entry, resolution)
}

// List implements [idempotency.Inspector]. List reads the whole table twice, whatever request asks for: 2 to 4 seconds of
// one core for a million records. List reads only the answers of the page. Claims and replays do not wait for List, because
// List has a separate connection, for one listing at a time. While List reads, the log beside the file grows.
//
// With request.Each, List reads the table once, including all answers asked for.
func (s *Store) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	if err := request.Validate(); err != nil {
		return idempotency.Listing{}, wrapFailure("list", err)
	}
	var r *reader
	lister := sqlstore.Lister{
		Table: "main.idempotency_records", ScanHint: "NOT INDEXED", SubqueryEnd: "LIMIT -1",
		AnswerSize: "OCTET_LENGTH(response)",
		Name:       func(column string) string { return column },
		Text:       func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" },
		Query:      func(ctx context.Context, text string) (*sql.Rows, error) { return r.conn.QueryContext(ctx, text) },
	}
	repeat := func(step func() error) error {
		return s.listReaders.withReader(ctx, func(taken *reader) error {
			r = taken
			return step()
		})
	}
	listing, err := sqlstore.RepeatList(request, repeat, func(request idempotency.ListRequest) (idempotency.Listing, error) {
		return lister.List(ctx, request, s.writer.nowMicros())
	})
	return listing, wrapFailure("list", err)
}
