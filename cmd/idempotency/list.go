package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/idempotency-go/idempotency"
)

// listCommand lists records.
type listCommand struct {
	State   []idempotency.State `enum:"running,abandoned,released,completed" help:"Only these: ${enum}." placeholder:"STATE"`
	User    string              `placeholder:"NAME" help:"Only this user. Redis does not keep users."`
	Largest bool                `help:"The largest first. Default: the oldest first."`
	Limit   int                 `default:"100" help:"List so many at most."`
	Scan    int                 `default:"100000" help:"Look at so many records at most, in Redis."`
}

func (c *listCommand) Run(a *app) error {
	s, err := a.open(positive("--limit", c.Limit), positive("--scan", c.Scan))
	if err != nil {
		return err
	}
	defer s.close()
	listing, err := a.list(s, idempotency.ListRequest{
		States: c.State, User: c.User, Largest: c.Largest, Limit: c.Limit, Scan: c.Scan,
	})
	if err != nil {
		return err
	}
	if a.line.JSON {
		err = writeJSON(a.out, jsonListing(s, listing))
	} else if len(listing.Entries) > 0 {
		a.showEntries(listing.Entries)
		showRest(a.out, listing)
	} else {
		fmt.Fprintln(a.out, "No such record.")
		showRest(a.out, listing)
	}
	switch {
	case err != nil || len(listing.Entries) > 0:
		return err
	case listing.Partial || listing.Unreadable > 0: // there may be one among those
		return nothing(exitUnknown)
	default:
		return nothing(exitNothing)
	}
}

func (a *app) list(s *opened, request idempotency.ListRequest) (idempotency.Listing, error) {
	ctx, cancel := context.WithTimeout(context.Background(), a.line.Timeout)
	defer cancel()
	listing, err := s.List(ctx, request)
	if errors.Is(err, errors.ErrUnsupported) {
		return listing, &failure{exitUsage, err}
	}
	return listing, err
}

// showEntries writes a row for each entry: with its key where the store keeps it, else with the digest.
func (a *app) showEntries(entries []idempotency.Entry) {
	keys, digests := false, false
	for _, e := range entries {
		known := e.Key != idempotency.Key{}
		keys, digests = keys || known, digests || !known
	}
	t := newTable(a.out)
	head := []any{a.style.colour(plain, "state"), "began", "attempt", "status", "bytes", "lease left", "kept for"}
	if keys {
		head = append(head, "user", "endpoint", "key")
	}
	if digests {
		head = append(head, "digest")
	}
	t.row(head...)
	for _, e := range entries {
		cells := []any{
			a.style.state(e.State), instant(e.Created), e.Attempt, e.Status, e.Size,
			duration(e.LeaseLeft), duration(e.Remaining),
		}
		if e.Status == 0 {
			cells[3] = ""
		}
		if keys {
			cells = append(cells, visible(e.Key.User), visible(e.Key.Endpoint), visible(e.Key.ID))
		}
		if (digests && e.Key == idempotency.Key{}) {
			cells = append(cells, hex.EncodeToString(e.Digest[:]))
		}
		t.row(cells...)
	}
	t.flush()
}

// showRest says what a listing leaves out.
func showRest(out io.Writer, listing idempotency.Listing) {
	total := 0
	for _, t := range listing.Totals {
		total += t.Records
	}
	if total > len(listing.Entries) {
		fmt.Fprintf(out, "\n%d of %d records: --limit shows more.\n", len(listing.Entries), total)
	}
	if listing.Partial {
		fmt.Fprint(out, "\nThe store has more records than were looked at: --scan looks at more.\n")
	}
	if listing.Unreadable > 0 {
		fmt.Fprintf(out, "\nRecords that cannot be read: %d.\n", listing.Unreadable)
	}
}

// listingDocument is what list prints as JSON.
type listingDocument struct {
	Store      string                          `json:"store"`
	Entries    []*jsonEntry                    `json:"entries"`
	Totals     map[idempotency.State]jsonTotal `json:"totals"`
	Partial    bool                            `json:"partial"`
	Unreadable int                             `json:"unreadable"`
}

type jsonTotal struct {
	Records int   `json:"records"`
	Bytes   int64 `json:"bytes"`
}

func jsonListing(s *opened, listing idempotency.Listing) listingDocument {
	d := listingDocument{
		Store: s.name, Entries: []*jsonEntry{}, Totals: make(map[idempotency.State]jsonTotal), Partial: listing.Partial,
		Unreadable: listing.Unreadable,
	}
	for _, e := range listing.Entries {
		d.Entries = append(d.Entries, jsonOf(e, nil, false))
	}
	for state, total := range listing.Totals {
		d.Totals[state] = jsonTotal(total)
	}
	return d
}
