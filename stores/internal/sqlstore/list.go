package sqlstore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/recordline"
)

//go:embed sql
var files embed.FS

// Lister lists the records of a table, by statements that a database has words of its own for.
type Lister struct {
	// Table is the name of the table.
	Table string

	// Whole, behind the name, has the table read from the beginning to the end.
	Whole string

	// Apart, at the end of an inner query, keeps the database from making one of it and the query around it, if it would
	// then sort the answers, too.
	Apart string

	// AnswerSize is how many bytes a response has, or null, without reading the response.
	AnswerSize string

	// Name returns a name as it is stored.
	Name func(column string) string

	// Text returns a literal for a name.
	Text func(s string) string

	// Query runs a statement.
	Query func(ctx context.Context, text string) (*sql.Rows, error)
}

// List returns what List of [idempotency.Inspector] does, by the time now. It reads the table twice.
func (l *Lister) List(ctx context.Context, request idempotency.ListRequest, now int64) (idempotency.Listing, error) {
	if request.Limit < 0 {
		return idempotency.Listing{}, fmt.Errorf("a Limit of %d is less than zero", request.Limit)
	}
	listing := idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total)}
	err := l.read(ctx, l.statement("list", request, now), func(rows *sql.Rows) error {
		scanEntry(rows, now, &listing)
		return nil
	})
	if err == nil {
		err = l.read(ctx, l.statement("totals", request, now), func(rows *sql.Rows) error { return scanTotal(rows, &listing) })
	}
	if err != nil {
		return idempotency.Listing{}, err
	}
	return listing, nil
}

func (l *Lister) read(ctx context.Context, text string, scan func(*sql.Rows) error) error {
	rows, err := l.Query(ctx, text)
	if err != nil {
		return err
	}
	defer rows.Close() // Err tells what matters
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// What the statements have in common. Both databases have these words.
const (
	size = "(LENGTH(user_id) + LENGTH(endpoint) + LENGTH(`key`) + COALESCE({answer_size}, 0)" + // names are ASCII
		" + COALESCE(OCTET_LENGTH(steps), 0) + COALESCE(OCTET_LENGTH(resolved), 0))"

	// state says the same as Row.state.
	state = "CASE WHEN {answer_size} IS NOT NULL THEN 'completed' WHEN lease IS NULL THEN 'released'" +
		" WHEN lease > {now} THEN 'running' ELSE 'abandoned' END"

	// readable says the same as Row.checkValues.
	readable = "OCTET_LENGTH(digest) = 32 AND OCTET_LENGTH(fingerprint) = 32 AND attempt BETWEEN 1 AND 2147483646" +
		" AND (lease IS NULL OR {answer_size} IS NULL AND lease <= {farthest})"

	behind      = "(created > {created} OR created = {created} AND digest > {digest})"
	behindSmall = "(" + size + " < {after_size} OR " + size + " = {after_size} AND " + behind + ")"
)

// statement returns a statement for a request. Its values are literals.
func (l *Lister) statement(file string, request idempotency.ListRequest, now int64) string {
	text := strings.NewReplacer("{size}", size, "{state}", state, "{readable}", readable, "{asked_for}", askedFor(request),
		"{in_states}", inStates(request.States), "{behind}", behindOf(request), "{order}", orderOf(request),
	).Replace(Statement(files, file))
	after := cmp.Or(request.After, &idempotency.Entry{})
	return strings.NewReplacer("{table}", l.Table, "{whole}", l.Whole, "{apart}", l.Apart, "{answer_size}", l.AnswerSize,
		"{user_id}", l.Name("user_id"), "{endpoint}", l.Name("endpoint"), "{key}", l.Name("`key`"),
		"{user}", l.Text(EscapeName(request.User)), "{limit}", decimal(int64(cmp.Or(request.Limit, 100))),
		"{now}", decimal(now), "{farthest}", decimal(now+math.MaxInt64/1000),
		"{created}", decimal(after.Created.UnixMicro()), "{digest}", "x'"+hex.EncodeToString(after.Digest[:])+"'",
		"{after_size}", decimal(after.Size),
	).Replace(text)
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// counts says the same as Row.Counts.
const counts = "expires > {now} AND (attempt <> 0 OR lease IS NOT NULL OR {answer_size} IS NOT NULL)"

// askedFor returns the condition that a record counts, and is one of the user that is asked for.
func askedFor(request idempotency.ListRequest) string {
	if request.User == "" {
		return counts
	}
	return counts + " AND {user_id} = {user}"
}

// inStates returns the condition that a state is one of those that are asked for.
func inStates(asked []idempotency.State) string {
	if len(asked) == 0 {
		return "IS NOT NULL"
	}
	names := []string{"''"}
	for _, known := range []idempotency.State{ // nothing else comes into a statement
		idempotency.StateRunning, idempotency.StateAbandoned, idempotency.StateReleased, idempotency.StateCompleted,
	} {
		if slices.Contains(asked, known) {
			names = append(names, "'"+string(known)+"'")
		}
	}
	return "IN (" + strings.Join(names, ", ") + ")"
}

// behindOf returns the condition that a record is behind the page before.
func behindOf(request idempotency.ListRequest) string {
	switch {
	case request.After == nil:
		return "TRUE"
	case request.Largest:
		return behindSmall
	default:
		return behind
	}
}

func orderOf(request idempotency.ListRequest) string {
	if request.Largest {
		return size + " DESC, created, digest"
	}
	return "created, digest"
}

// scanEntry adds the entry of a row of the statement "list".
func scanEntry(rows *sql.Rows, now int64, listing *idempotency.Listing) {
	var r Row
	var digest []byte
	var size int64
	if err := rows.Scan(append([]any{&digest, &size}, r.Columns()...)...); err != nil { // types of another table
		listing.Unreadable++
		return
	}
	r.Now = now
	e, _ := r.Listed([sha256.Size]byte(digest)) // the statement has found it readable
	e.Size = size
	if line, _ := recordline.ParseResponse(r.Response.V); line.OK && CheckStatus(int(line.Status)) == nil {
		e.Status, e.Note = int(line.Status), line.Note
	}
	listing.Entries = append(listing.Entries, e)
}

// scanTotal adds a row of the statement "totals".
func scanTotal(rows *sql.Rows, listing *idempotency.Listing) error {
	var state sql.Null[string]
	var total idempotency.Total
	if err := rows.Scan(&state, &total.Records, &total.Bytes); err != nil {
		return err
	}
	if !state.Valid {
		listing.Unreadable += total.Records
		return nil
	}
	listing.Totals[idempotency.State(state.V)] = total
	return nil
}
