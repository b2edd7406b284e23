package main

import (
	"context"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// statsCommand prints totals of the store, abandoned operations, and the largest users.
type statsCommand struct {
	Limit int `default:"10" help:"Maximum number of abandoned records, and of users, to show."`
	Scan  int `default:"100000" help:"Maximum number of records to read, in Redis and DynamoDB."`
}

// shownStates has all states in the order of the output.
var shownStates = []idempotency.State{
	idempotency.StateRunning, idempotency.StateAbandoned, idempotency.StateReleased, idempotency.StateCompleted,
}

func (c *statsCommand) Run(a *app) error {
	store, err := a.openStore(requirePositive("--limit", c.Limit), requirePositive("--scan", c.Scan))
	if err != nil {
		return err
	}
	defer store.closeClient()
	all, err := a.loadListing(store, idempotency.ListRequest{Limit: 1, Scan: c.Scan})
	if err != nil {
		return err
	}
	abandoned, err := a.loadListing(store, idempotency.ListRequest{
		States: []idempotency.State{idempotency.StateAbandoned}, Limit: c.Limit, Scan: c.Scan,
		Order: idempotency.OldestFirst,
	})
	if err != nil {
		return err
	}
	all.Entries = abandoned.Entries
	users, err := c.loadUsers(a, store)
	if err != nil {
		return err
	}
	if a.flags.JSON {
		return writeJSON(a.out, newStatsDocument(store, all, users))
	}
	c.showStats(a, store, all, users)
	return nil
}

func (c *statsCommand) loadUsers(a *app, store *openedStore) ([]pgxstore.UserTotal, error) {
	if store.loadLargestUsers == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.flags.Timeout)
	defer cancel()
	return store.loadLargestUsers(ctx, c.Limit)
}

func (c *statsCommand) showStats(a *app, store *openedStore, all idempotency.Listing, users []pgxstore.UserTotal) {
	fmt.Fprintf(a.out, "%s\n\n", store.description)
	t := newTable(a.out)
	t.writeRow(a.style.colourText(plain, "state"), "records", "bytes")
	var sum idempotency.Total
	for _, state := range shownStates {
		total := all.Totals[state]
		t.writeRow(a.style.colourState(state), total.Records, total.Bytes)
		sum.Records, sum.Bytes = sum.Records+total.Records, sum.Bytes+total.Bytes
	}
	t.writeRow(a.style.colourText(plain, "all"), sum.Records, sum.Bytes)
	t.flush()
	if all.Partial {
		fmt.Fprint(a.out, "\nThe store has more records than were looked at: --scan looks at more.\n")
	}
	if all.Unreadable > 0 {
		fmt.Fprintf(a.out, "\nRecords that cannot be read: %d.\n", all.Unreadable)
	}
	if len(all.Entries) > 0 {
		fmt.Fprint(a.out, "\nAbandoned, the oldest first:\n\n")
		a.showEntries(all.Entries, withoutOperation)
	}
	if len(users) > 0 {
		fmt.Fprint(a.out, "\nThe largest users:\n\n")
		t := newTable(a.out)
		t.writeRow("records", "bytes", "user")
		for _, u := range users {
			t.writeRow(u.Records, u.Bytes, visible.Text(u.User))
		}
		t.flush()
	}
}

// statsDocument is the JSON document of stats.
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

func newStatsDocument(store *openedStore, all idempotency.Listing, users []pgxstore.UserTotal) statsDocument {
	listing := newListingDocument(store, all, "")
	document := statsDocument{
		Store: store.description, Totals: listing.Totals, Partial: all.Partial, Unreadable: all.Unreadable, Abandoned: listing.Entries,
	}
	for _, u := range users {
		document.Users = append(document.Users, jsonUser{u.User, jsonTotal(u.Total)})
	}
	return document
}
