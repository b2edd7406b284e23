package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"encoding/hex"
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
// twice, or once if request.Each is set.
func (l *Lister) List(ctx context.Context, request idempotency.ListRequest, now int64) (idempotency.Listing, error) {
	listing := idempotency.Listing{Totals: make(map[idempotency.State]idempotency.Total)}
	var err error
	if request.Each != nil {
		err = l.scanRows(ctx, l.buildStatement("each", request, now), func(rows *sql.Rows) error {
			e, ok := scanEntry(rows, now, &listing)
			if !ok {
				return nil
			}
			AddTotal(&listing, e)
			return request.Each(e)
		})
	} else {
		err = l.addPage(ctx, request, now, &listing)
	}
	if err != nil {
		return idempotency.Listing{}, err
	}
	return listing, nil
}

// addPage adds the entries of a page and the totals to listing.
func (l *Lister) addPage(ctx context.Context, request idempotency.ListRequest, now int64, listing *idempotency.Listing) error {
	err := l.scanRows(ctx, l.buildStatement("list", request, now), func(rows *sql.Rows) error {
		if e, ok := scanEntry(rows, now, listing); ok {
			listing.Entries = append(listing.Entries, e)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return l.scanRows(ctx, l.buildStatement("totals", request, now), func(rows *sql.Rows) error { return scanTotal(rows, listing) })
}

// AddTotal adds e to the totals of listing.
func AddTotal(listing *idempotency.Listing, e idempotency.Entry) {
	total := listing.Totals[e.State]
	listing.Totals[e.State] = idempotency.Total{Records: total.Records + 1, Bytes: total.Bytes + e.Size}
}

// RepeatList calls list in repeat, which repeats a step after some errors. Once request.Each was called, every error is
// final, because a repetition would call Each with the same records again.
func RepeatList(
	request idempotency.ListRequest, repeat func(step func() error) error,
	list func(idempotency.ListRequest) (idempotency.Listing, error),
) (listing idempotency.Listing, err error) {
	var hasStreamed bool
	var finalErr error
	if each := request.Each; each != nil {
		request.Each = func(e idempotency.Entry) error {
			hasStreamed = true
			return each(e)
		}
	}
	err = repeat(func() (err error) {
		listing, err = list(request)
		if hasStreamed {
			finalErr, err = err, nil
		}
		return err
	})
	return listing, cmp.Or(finalErr, err)
}

func (l *Lister) scanRows(ctx context.Context, text string, scan func(*sql.Rows) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rows, err := l.Query(ctx, text)
	if err != nil {
		return err
	}
	defer rows.Close() // rows.Err returns every error that matters
	defer cancel()     // after an error of scan, because Close would read all remaining rows
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

	newerSQL    = "(created > {created} OR created = {created} AND operation > {operation})"
	olderSQL    = "(created < {created} OR created = {created} AND operation < {operation})"
	noLargerSQL = "(" + sizeSQL + " < {after_size} OR " + sizeSQL + " = {after_size} AND " + newerSQL + ")"
)

// buildStatement returns the statement of a file, with the values of request as literals.
func (l *Lister) buildStatement(file string, request idempotency.ListRequest, now int64) string {
	text := strings.NewReplacer("{size}", sizeSQL, "{state}", stateSQL, "{readable}", readableSQL, "{asked_for}", countsFor(request),
		"{in_states}", inStates(request.States), "{behind}", afterCursor(request), "{order}", sortOrder(request),
	).Replace(Statement(files, file))
	after := cmp.Or(request.After, &idempotency.Entry{})
	asked := NamesOf(idempotency.Key{User: request.User, Endpoint: request.Endpoint, ID: request.ID})
	return strings.NewReplacer("{table}", l.Table, "{whole}", l.ScanHint, "{apart}", l.SubqueryEnd, "{answer_size}", l.AnswerSize,
		"{user_id}", l.Name("user_id"), "{endpoint}", l.Name("endpoint"), "{key}", l.Name("`key`"),
		"{asked_user}", l.Text(asked[0]), "{asked_endpoint}", l.Text(asked[1]), "{asked_key}", l.Text(asked[2]),
		"{since}", formatDecimal(MicrosSince(request.Since)), "{before}", formatDecimal(MicrosSince(request.Before)),
		"{limit}", formatDecimal(int64(cmp.Or(request.Limit, 100))),
		"{now}", formatDecimal(now), "{farthest}", formatDecimal(now+math.MaxInt64/1000),
		"{created}", formatDecimal(after.Created.UnixMicro()), "{operation}", "x'"+hex.EncodeToString(after.Operation[:])+"'",
		"{after_size}", formatDecimal(after.Size),
	).Replace(text)
}

func formatDecimal(n int64) string { return strconv.FormatInt(n, 10) }

// countsSQL is the condition of Row.Counts.
const countsSQL = "expires > {now} AND (attempt <> 0 OR lease IS NOT NULL OR {answer_size} IS NOT NULL)"

// countsFor returns the condition that a record counts, and has the names and the time of creation that request asks
// for.
func countsFor(request idempotency.ListRequest) string {
	text := countsSQL
	for _, asked := range []struct {
		isSet     bool
		condition string
	}{
		{request.User != "", "{user_id} = {asked_user}"},
		{request.Endpoint != "", "{endpoint} = {asked_endpoint}"},
		{request.ID != "", "{key} = {asked_key}"},
		{!request.Since.IsZero(), "created >= {since}"},
		{!request.Before.IsZero(), "created < {before}"},
	} {
		if asked.isSet {
			text += " AND " + asked.condition
		}
	}
	return text
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
		return noLargerSQL
	case request.Order == idempotency.OldestFirst:
		return newerSQL
	default:
		return olderSQL
	}
}

func sortOrder(request idempotency.ListRequest) string {
	switch request.Order {
	case idempotency.LargestFirst:
		return sizeSQL + " DESC, created, operation"
	case idempotency.OldestFirst:
		return "created, operation"
	default:
		return "created DESC, operation DESC"
	}
}

// scanEntry returns the entry in a row of the statement "list" or "each". If the record is unreadable, scanEntry counts
// the record in listing.
func scanEntry(rows *sql.Rows, now int64, listing *idempotency.Listing) (e idempotency.Entry, ok bool) {
	var r Row
	var operation []byte
	var size int64
	err := rows.Scan(append([]any{&operation, &size}, r.Columns()...)...) // fails for types of a different table
	if err == nil && len(operation) == len(uuid.UUID{}) {
		r.Now = now
		e, err = r.Listed(uuid.UUID(operation))
		ok = err == nil
	}
	if !ok {
		listing.Unreadable++
		return idempotency.Entry{}, false
	}
	e.Size = size
	if line, _ := recordline.ParseResponse(r.Response.V); line.OK && CheckStatus(int(line.Status)) == nil {
		e.Status, e.Note = int(line.Status), line.Note
	}
	return e, true
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
