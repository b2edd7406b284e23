package idempotency

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// mayForget returns why the record that e describes is not forgotten when somebody asks to forget an entry.
func (e Entry) mayForget(asked Entry) error {
	switch {
	case e.State == StateRunning:
		return ErrInProgress
	case e.State != asked.State || !e.Created.Equal(asked.Created) || e.Attempt != asked.Attempt:
		return ErrEntryChanged
	}
	return nil
}

func (r ListRequest) withDefaults() ListRequest {
	r.Limit = cmp.Or(r.Limit, 100)
	r.Scan = cmp.Or(r.Scan, 100_000)
	return r
}

func (r ListRequest) validate() error {
	var faults faults
	faults.check(r.Limit >= 0, "Limit %d is negative", r.Limit)
	faults.check(r.Scan >= 0, "Scan %d is negative", r.Scan)
	return errors.Join(faults...)
}

// order returns the order in which entries are listed. The last words make it the same each time.
func (r ListRequest) order() func(a, b Entry) int {
	return func(a, b Entry) int {
		bySize := 0
		if r.Largest {
			bySize = cmp.Compare(b.Size, a.Size)
		}
		return cmp.Or(bySize, a.Created.Compare(b.Created), bytes.Compare(a.Digest[:], b.Digest[:]))
	}
}

// collector makes a [Listing] of entries that come one by one. It holds hardly more of them than are asked for.
type collector struct {
	request ListRequest
	listing Listing
}

func newCollector(request ListRequest) (*collector, error) {
	if err := request.validate(); err != nil {
		return nil, fmt.Errorf("idempotency: list: %w", err)
	}
	return &collector{request.withDefaults(), Listing{Totals: make(map[State]Total)}}, nil
}

// add counts an entry if it is asked for, and keeps it if it is among the first ones.
func (c *collector) add(e Entry) {
	if states := c.request.States; len(states) > 0 && !slices.Contains(states, e.State) {
		return
	}
	total := c.listing.Totals[e.State]
	c.listing.Totals[e.State] = Total{total.Records + 1, total.Bytes + e.Size}
	c.listing.Entries = append(c.listing.Entries, e)
	const slack = 1000 // so that sorting is rare
	if len(c.listing.Entries)-slack > c.request.Limit {
		c.cut()
	}
}

// cut keeps the first entries.
func (c *collector) cut() {
	slices.SortFunc(c.listing.Entries, c.request.order())
	if most := c.request.Limit; len(c.listing.Entries) > most {
		clear(c.listing.Entries[most:])
		c.listing.Entries = c.listing.Entries[:most]
	}
}

func (c *collector) result() Listing {
	c.cut()
	return c.listing
}
