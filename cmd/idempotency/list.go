package main

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// listCommand lists records.
type listCommand struct {
	searchFlags
	Order idempotency.ListOrder `enum:"newest,oldest,largest" default:"newest" help:"The records to list first: ${enum}." placeholder:"ORDER"`
	Limit int                   `default:"100" help:"Maximum number of listed records."`
	After string                `placeholder:"CURSOR" help:"List the page after CURSOR. Each page ends with the next cursor."`
	Scan  int                   `default:"100000" help:"Maximum number of records to read, in Redis and DynamoDB."`
}

func (c *listCommand) Run(a *app) error {
	after, err := parseCursor(c.After)
	request, searchErr := c.newListRequest(time.Now())
	store, err := a.openStore(err, searchErr, requirePositive("--limit", c.Limit), requirePositive("--scan", c.Scan))
	if err != nil {
		return err
	}
	defer store.closeClient()
	request.Order, request.Limit, request.Scan, request.After = c.Order, min(c.Limit, math.MaxInt-1)+1, c.Scan, after
	listing, err := a.loadListing(store, request)
	if err != nil {
		return err
	}
	next := ""
	if len(listing.Entries) > c.Limit {
		listing.Entries = listing.Entries[:c.Limit]
		next = formatCursor(listing.Entries[c.Limit-1])
	}
	if a.flags.JSON {
		err = writeJSON(a.out, newListingDocument(store, listing, next))
	} else {
		a.showListing(listing, next)
	}
	if err != nil || len(listing.Entries) > 0 {
		return err
	}
	return exitWithoutMatch(listing)
}

// exitWithoutMatch returns the exit status of a search without a match. The records that were not read may have a match.
func exitWithoutMatch(listing idempotency.Listing) error {
	if listing.Partial || listing.Unreadable > 0 {
		return exitSilently(exitUnknown)
	}
	return exitSilently(exitNothing)
}

// formatCursor returns the cursor for the page after e.
func formatCursor(e idempotency.Entry) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(e.Created.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Size))
	return base64.RawURLEncoding.EncodeToString(append(b, e.Operation[:]...))
}

// parseCursor returns an entry with the fields in a cursor, which determine the order of a listing. parseCursor returns nil for an
// empty text.
func parseCursor(text string) (*idempotency.Entry, error) {
	if text == "" {
		return nil, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != 32 {
		return nil, errors.New("--after: want the cursor of the page before")
	}
	return &idempotency.Entry{
		Created: time.UnixMicro(int64(binary.BigEndian.Uint64(b))), Size: int64(binary.BigEndian.Uint64(b[8:])),
		Operation: uuid.UUID(b[16:]),
	}, nil
}

// showListing prints a page of a listing.
func (a *app) showListing(listing idempotency.Listing, next string) {
	total := 0
	for _, t := range listing.Totals {
		total += t.Records
	}
	switch {
	case len(listing.Entries) > 0:
		a.showEntries(listing.Entries, withoutOperation)
	case total > 0:
		fmt.Fprintln(a.out, "No further record.")
	default:
		fmt.Fprintln(a.out, "No such record.")
	}
	if total > len(listing.Entries) {
		fmt.Fprintf(a.out, "\n%d of %d records.\n", len(listing.Entries), total)
	}
	if next != "" {
		fmt.Fprintf(a.out, "The next page: --after %s\n", next)
	}
	if listing.Partial {
		fmt.Fprint(a.out, "\nThe store has more records than were looked at: --scan looks at more.\n")
	}
	if listing.Unreadable > 0 {
		fmt.Fprintf(a.out, "\nRecords that cannot be read: %d.\n", listing.Unreadable)
	}
}

// operationColumn says whether a table has a column with the operation. Rows without a key have the operation anyway.
type operationColumn bool

const (
	withOperation    operationColumn = true
	withoutOperation operationColumn = false
)

// showEntries prints a row for each entry. Columns without any value are left out.
func (a *app) showEntries(entries []idempotency.Entry, shown operationColumn) {
	rows := [][]string{{a.style.colourText(plain, "state"), "began", "attempt", "status", "bytes", "lease left", "kept for",
		"user", "endpoint", "key", "operation"}}
	used := make([]bool, len(rows[0]))
	for _, e := range entries {
		row := []string{a.style.colourState(e.State), formatTime(e.Created), fmt.Sprint(e.Attempt), "", fmt.Sprint(e.Size),
			formatDuration(e.LeaseLeft), formatDuration(e.Remaining), visible.Text(e.Key.User), visible.Text(e.Key.Endpoint),
			visible.Text(e.Key.ID), ""}
		if e.Status != 0 {
			row[3] = fmt.Sprint(e.Status)
		}
		if shown || e.Key == (idempotency.Key{}) {
			row[10] = e.Operation.String()
		}
		for i, cell := range row {
			used[i] = used[i] || cell != ""
		}
		rows = append(rows, row)
	}
	t := newTable(a.out)
	for _, row := range rows {
		var cells []any
		for i, cell := range row {
			if used[i] {
				cells = append(cells, cell)
			}
		}
		t.writeRow(cells...)
	}
	t.flush()
}

// listingDocument is the JSON document of list.
type listingDocument struct {
	Store      string                          `json:"store"`
	Entries    []*jsonEntry                    `json:"entries"`
	Next       string                          `json:"next,omitempty"` // for --after
	Totals     map[idempotency.State]jsonTotal `json:"totals"`
	Partial    bool                            `json:"partial"`
	Unreadable int                             `json:"unreadable"`
}

type jsonTotal struct {
	Records int   `json:"records"`
	Bytes   int64 `json:"bytes"`
}

func newListingDocument(store *openedStore, listing idempotency.Listing, next string) listingDocument {
	document := listingDocument{
		Store: store.description, Entries: []*jsonEntry{}, Next: next, Totals: make(map[idempotency.State]jsonTotal),
		Partial: listing.Partial, Unreadable: listing.Unreadable,
	}
	for _, e := range listing.Entries {
		document.Entries = append(document.Entries, newJSONEntry(e, nil, false))
	}
	for state, total := range listing.Totals {
		document.Totals[state] = jsonTotal(total)
	}
	return document
}
