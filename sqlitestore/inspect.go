package sqlitestore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/sqlstore"
)

var (
	_ idempotency.Resolver = (*Store)(nil)
	_ idempotency.Resolver = (*TxStore)(nil)
)

// Inspect implements [idempotency.Inspector]. It does not wait for those who write. A [TxStore] also shows that it runs the
// operation itself. Nobody sees what a transaction of another store or process runs.
func (f *file) Inspect(ctx context.Context, key idempotency.Key) (idempotency.Entry, error) {
	return f.InspectDigest(ctx, key.Digest())
}

// InspectDigest implements [idempotency.Resolver], as Inspect does.
func (f *file) InspectDigest(ctx context.Context, digest [sha256.Size]byte) (idempotency.Entry, error) {
	isRunning := f.running.has(digest[:]) // before it is read, or what ends in between would be neither
	seen, err := f.readers.see(ctx, digest[:])
	if err != nil {
		return idempotency.Entry{Digest: digest}, failure("inspect", err)
	}
	seen.Now, seen.Locked = f.writer.micros(), isRunning
	entry, err := seen.Entry(digest)
	return entry, failure("inspect", err)
}

// Forget implements [idempotency.Inspector]. It takes its turn to write.
func (f *file) Forget(ctx context.Context, entry idempotency.Entry) error {
	return f.change(entry, "forget", func() error { return sqlstore.Forget(ctx, leases{f.writer}, entry) })
}

// Resolve implements [idempotency.Resolver]. It takes its turn to write. What a transaction has run is never abandoned.
//
// A transaction of another store or process that has taken the operation over, and has not begun, cannot be seen. It has
// lost its claim then, and its effects in the file are undone.
func (f *file) Resolve(ctx context.Context, entry idempotency.Entry, resolution idempotency.Resolution) error {
	return f.change(entry, "resolve", func() error {
		return sqlstore.Resolve(ctx, leases{f.writer}, entry, resolution)
	})
}

// change does what an operator asks for while no transaction of this store takes the operation over. What is completed is
// not taken over.
func (f *file) change(entry idempotency.Entry, step string, do func() error) error {
	if entry.State == idempotency.StateCompleted {
		err := do()
		if errors.Is(err, idempotency.ErrNoRecord) && f.running.has(entry.Digest[:]) { // again, since it has expired
			err = failure(step, idempotency.ErrInProgress)
		}
		return err
	}
	if !f.running.hold(entry.Digest[:]) {
		return failure(step, idempotency.ErrInProgress)
	}
	defer f.running.let(entry.Digest[:])
	return do()
}

// List implements [idempotency.Inspector]. What a transaction runs is not listed, because it has no record yet.
//
// List reads the whole table twice: 2 to 4 seconds of one core for a million records. It reads no answers, except for those
// of the page. Claims and replays do not wait for it: it has a connection of its own, for one listing at a time. As long as
// it reads, the log beside the file grows.
func (f *file) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	var listing idempotency.Listing
	err := f.lister.do(ctx, func(r *reader) (err error) {
		lister := sqlstore.Lister{
			Table: "main.idempotency_records", Whole: "NOT INDEXED", Apart: "LIMIT -1",
			AnswerSize: "OCTET_LENGTH(response)",
			Name:       func(column string) string { return column },
			Text:       func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" },
			Query:      func(ctx context.Context, text string) (*sql.Rows, error) { return r.conn.QueryContext(ctx, text) },
		}
		listing, err = lister.List(ctx, request, f.writer.micros())
		return err
	})
	return listing, failure("list", err)
}
