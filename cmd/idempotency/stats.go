package main

import (
	"context"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// statsCommand sums up the store.
type statsCommand struct {
	Limit int `default:"10" help:"Show so many abandoned records and users at most."`
	Scan  int `default:"100000" help:"Look at so many records at most, in Redis and DynamoDB."`
}

// states are in the order in which they are shown.
var states = []idempotency.State{
	idempotency.StateRunning, idempotency.StateAbandoned, idempotency.StateReleased, idempotency.StateCompleted,
}

func (c *statsCommand) Run(a *app) error {
	s, err := a.open(positive("--limit", c.Limit), positive("--scan", c.Scan))
	if err != nil {
		return err
	}
	defer s.close()
	all, err := a.list(s, idempotency.ListRequest{Limit: 1, Scan: c.Scan})
	if err != nil {
		return err
	}
	abandoned, err := a.list(s, idempotency.ListRequest{
		States: []idempotency.State{idempotency.StateAbandoned}, Limit: c.Limit, Scan: c.Scan,
	})
	if err != nil {
		return err
	}
	all.Entries = abandoned.Entries
	users, err := c.users(a, s)
	if err != nil {
		return err
	}
	if a.line.JSON {
		return writeJSON(a.out, jsonStats(s, all, users))
	}
	c.show(a, s, all, users)
	return nil
}

func (c *statsCommand) users(a *app, s *opened) ([]pgxstore.UserTotal, error) {
	if s.users == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.line.Timeout)
	defer cancel()
	return s.users(ctx, c.Limit)
}

func (c *statsCommand) show(a *app, s *opened, all idempotency.Listing, users []pgxstore.UserTotal) {
	fmt.Fprintf(a.out, "%s\n\n", s.name)
	t := newTable(a.out)
	t.row(a.style.colour(plain, "state"), "records", "bytes")
	var sum idempotency.Total
	for _, state := range states {
		total := all.Totals[state]
		t.row(a.style.state(state), total.Records, total.Bytes)
		sum.Records, sum.Bytes = sum.Records+total.Records, sum.Bytes+total.Bytes
	}
	t.row(a.style.colour(plain, "all"), sum.Records, sum.Bytes)
	t.flush()
	if all.Partial {
		fmt.Fprint(a.out, "\nThe store has more records than were looked at: --scan looks at more.\n")
	}
	if all.Unreadable > 0 {
		fmt.Fprintf(a.out, "\nRecords that cannot be read: %d.\n", all.Unreadable)
	}
	if len(all.Entries) > 0 {
		fmt.Fprint(a.out, "\nAbandoned, the oldest first:\n\n")
		a.showEntries(all.Entries)
	}
	if len(users) > 0 {
		fmt.Fprint(a.out, "\nThe largest users:\n\n")
		t := newTable(a.out)
		t.row("records", "bytes", "user")
		for _, u := range users {
			t.row(u.Records, u.Bytes, visible.Text(u.User))
		}
		t.flush()
	}
}

// statsDocument is what stats prints as JSON.
type statsDocument struct {
	Store      string                          `json:"store"`
	Totals     map[idempotency.State]jsonTotal `json:"totals"`
	Partial    bool                            `json:"partial"`
	Unreadable int                             `json:"unreadable"`
	Abandoned  []*jsonEntry                    `json:"abandoned"`
	Users      []jsonUser                      `json:"users,omitempty"`
}

type jsonUser struct {
	User string `json:"user"`
	jsonTotal
}

func jsonStats(s *opened, all idempotency.Listing, users []pgxstore.UserTotal) statsDocument {
	listing := jsonListing(s, all, "")
	d := statsDocument{
		Store: s.name, Totals: listing.Totals, Partial: all.Partial, Unreadable: all.Unreadable, Abandoned: listing.Entries,
	}
	for _, u := range users {
		d.Users = append(d.Users, jsonUser{u.User, jsonTotal(u.Total)})
	}
	return d
}
