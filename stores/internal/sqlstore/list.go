package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/recordline"
)

//go:embed sql
var files embed.FS

// Lister lists the records of a table. The fields hold the SQL of the database.
type Lister struct {
	// Table is the name of the table.
	Table string

	// ScanHint follows the name of the table, and makes the database scan the table from start to end.
	ScanHint string

	// SubqueryEnd ends an inner query. SubqueryEnd stops the database from merging the inner query into the outer
	// query, because the database would then sort the answers, too.
	SubqueryEnd string

	// AnswerSize is an expression for the size of the response in bytes, or null without a response. The database
	// evaluates AnswerSize without reading the response.
	AnswerSize string

	// Name returns an expression for a column with names, in the stored form.
	Name func(column string) string

	// Text returns a string literal with the value s.
	Text func(s string) string

	// Query runs a statement.
	Query func(ctx context.Context, text string) (*sql.Rows, error)
}

// List implements List of [idempotency.Inspector], at the time now in microseconds since 1970. List reads the table
// twice.
func (l *Lister) List(ctx context.Context, request idempotency.ListRequest, now int64) (idempotency.Listing, error) {
	if request.Limit < 0 {
		return idempotency.Listing{}, fmt.Errorf("the limit is %d, less than zero", request.Limit)
	}
	listing := idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total)}
	err := l.scanRows(ctx, l.buildStatement("list", request, now), func(rows *sql.Rows) error {
		scanEntry(rows, now, &listing)
		return nil
	})
	if err == nil {
		err = l.scanRows(ctx, l.buildStatement("totals", request, now), func(rows *sql.Rows) error { return scanTotal(rows, &listing) })
	}
	if err != nil {
		return idempotency.Listing{}, err
	}
	return listing, nil
}

func (l *Lister) scanRows(ctx context.Context, text string, scan func(*sql.Rows) error) error {
	rows, err := l.Query(ctx, text)
	if err != nil {
		return err
	}
	defer rows.Close() // rows.Err returns every error that matters
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Parts common to the statements. MySQL and SQLite understand all of them.
const (
	sizeSQL = "(LENGTH(user_id) + LENGTH(endpoint) + LENGTH(`key`) + COALESCE({answer_size}, 0)" + // names are ASCII
		" + COALESCE(OCTET_LENGTH(steps), 0) + COALESCE(OCTET_LENGTH(resolved), 0))"

	// stateSQL computes the state as Row.operationState does.
	stateSQL = "CASE WHEN {answer_size} IS NOT NULL THEN 'completed' WHEN lease IS NULL THEN 'released'" +
		" WHEN lease > {now} THEN 'running' ELSE 'abandoned' END"

	// readableSQL is the condition of Row.checkValues.
	readableSQL = "OCTET_LENGTH(operation) = 16 AND OCTET_LENGTH(fingerprint) = 32 AND attempt BETWEEN 1 AND 2147483646" +
		" AND (lease IS NULL OR {answer_size} IS NULL AND lease <= {farthest})"

	afterSQL       = "(created > {created} OR created = {created} AND operation > {operation})"
	afterBySizeSQL = "(" + sizeSQL + " < {after_size} OR " + sizeSQL + " = {after_size} AND " + afterSQL + ")"
)

// buildStatement returns the statement of a file, with the values of request as literals.
func (l *Lister) buildStatement(file string, request idempotency.ListRequest, now int64) string {
	text := strings.NewReplacer("{size}", sizeSQL, "{state}", stateSQL, "{readable}", readableSQL, "{asked_for}", countsForUser(request),
		"{in_states}", inStates(request.States), "{behind}", afterCursor(request), "{order}", sortOrder(request),
	).Replace(Statement(files, file))
	after := cmp.Or(request.After, &idempotency.Entry{})
	return strings.NewReplacer("{table}", l.Table, "{whole}", l.ScanHint, "{apart}", l.SubqueryEnd, "{answer_size}", l.AnswerSize,
		"{user_id}", l.Name("user_id"), "{endpoint}", l.Name("endpoint"), "{key}", l.Name("`key`"),
		"{user}", l.Text(EscapeName(request.User)), "{limit}", formatDecimal(int64(cmp.Or(request.Limit, 100))),
		"{now}", formatDecimal(now), "{farthest}", formatDecimal(now+math.MaxInt64/1000),
		"{created}", formatDecimal(after.Created.UnixMicro()), "{operation}", "x'"+hex.EncodeToString(after.Operation[:])+"'",
		"{after_size}", formatDecimal(after.Size),
	).Replace(text)
}

func formatDecimal(n int64) string { return strconv.FormatInt(n, 10) }

// countsSQL is the condition of Row.Counts.
const countsSQL = "expires > {now} AND (attempt <> 0 OR lease IS NOT NULL OR {answer_size} IS NOT NULL)"

// countsForUser returns the condition that a record counts and belongs to the user of request.
func countsForUser(request idempotency.ListRequest) string {
	if request.User == "" {
		return countsSQL
	}
	return countsSQL + " AND {user_id} = {user}"
}

// inStates returns the condition that a state is among the states asked for, or any state if asked is empty.
func inStates(asked []idempotency.State) string {
	if len(asked) == 0 {
		return "IS NOT NULL"
	}
	names := []string{"''"}
	for _, known := range []idempotency.State{ // only known states get into the statement
		idempotency.StateRunning, idempotency.StateAbandoned, idempotency.StateReleased, idempotency.StateCompleted,
	} {
		if slices.Contains(asked, known) {
			names = append(names, "'"+string(known)+"'")
		}
	}
	return "IN (" + strings.Join(names, ", ") + ")"
}

// afterCursor returns the condition that a record comes after the previous page.
func afterCursor(request idempotency.ListRequest) string {
	switch {
	case request.After == nil:
		return "TRUE"
	case request.Order == idempotency.LargestFirst:
		return afterBySizeSQL
	default:
		return afterSQL
	}
}

func sortOrder(request idempotency.ListRequest) string {
	if request.Order == idempotency.LargestFirst {
		return sizeSQL + " DESC, created, operation"
	}
	return "created, operation"
}

// scanEntry adds a row of the statement "list" to listing.
func scanEntry(rows *sql.Rows, now int64, listing *idempotency.Listing) {
	var r Row
	var operation []byte
	var size int64
	if err := rows.Scan(append([]any{&operation, &size}, r.Columns()...)...); err != nil { // types of a different table
		listing.Unreadable++
		return
	}
	r.Now = now
	e, _ := r.Listed(uuid.UUID(operation)) // the statement selects only readable records
	e.Size = size
	if line, _ := recordline.ParseResponse(r.Response.V); line.OK && CheckStatus(int(line.Status)) == nil {
		e.Status, e.Note = int(line.Status), line.Note
	}
	listing.Entries = append(listing.Entries, e)
}

// scanTotal adds a row of the statement "totals" to listing.
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
