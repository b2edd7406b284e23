package console

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// perPage is how many operations a page lists.
const perPage = 50

// list is a page of operations.
type list struct {
	State      string
	User       string
	Filters    []filter
	Rows       []row
	More       string // the address of the next page
	Later      bool   // this is not the first page
	Partial    bool
	Unreadable int
}

// filter leads to the operations of a state.
type filter struct {
	Name    string
	Address string
	Count   string
	Current bool
}

// row is an operation in a list.
type row struct {
	idempotency.Entry
	Address string
	Parts   []string // of the key, as far as they are shown
}

const everything = "all"

var states = []string{
	string(idempotency.StateAbandoned), string(idempotency.StateReleased), string(idempotency.StateRunning),
	string(idempotency.StateCompleted), everything,
}

// list lists operations: those first of which nobody knows what they have done.
func (c *Console) list(v *visit) {
	asked := v.r.URL.Query()
	l := &list{State: asked.Get("state"), User: asked.Get("user")}
	if l.State == "" {
		l.State = states[0]
	}
	after, err := parseBehind(asked)
	if err != nil || !slices.Contains(states, l.State) {
		v.refuse(http.StatusBadRequest, "Not readable", "The console has not made this address.", "./")
		return
	}
	l.Later = after != nil
	err = c.fill(v, l, after)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		(&find{}).fail(v, http.StatusNotImplemented,
			"This store cannot list these operations. Search by user, endpoint and key together.")
	case err != nil:
		c.fail(v, err, "./")
	default:
		v.write(http.StatusOK, page{Title: l.title(), List: l, Find: &find{}})
	}
}

// fill asks the store for a page of the list. The first page has totals of all states, which may take another question.
func (c *Console) fill(v *visit, l *list, after *idempotency.Entry) error {
	request := idempotency.ListRequest{User: l.User, Limit: perPage + 1, After: after}
	if l.State != everything {
		request.States = []idempotency.State{idempotency.State(l.State)}
	}
	listing, err := c.store.List(v.r.Context(), request)
	if err != nil {
		return err
	}
	l.Partial, l.Unreadable = listing.Partial, listing.Unreadable
	if entries := listing.Entries; len(entries) > perPage {
		listing.Entries = entries[:perPage]
		l.More = l.address(l.State) + behind(entries[perPage-1])
	}
	for _, e := range listing.Entries {
		r := row{Entry: e, Address: addressOf(e.Digest)}
		if v.shows && e.Key != (idempotency.Key{}) {
			r.Parts = []string{e.Key.User, e.Key.Endpoint, e.Key.ID}
		}
		l.Rows = append(l.Rows, r)
	}
	if l.State != everything && !l.Later {
		listing, err = c.store.List(v.r.Context(), idempotency.ListRequest{User: l.User, Limit: 1})
	}
	l.filter(listing.Totals)
	return err
}

// filter adds the links to all states.
func (l *list) filter(totals map[idempotency.State]idempotency.Total) {
	all := 0
	for _, total := range totals {
		all += total.Records
	}
	for _, state := range states {
		records := totals[idempotency.State(state)].Records
		if state == everything {
			records = all
		}
		f := filter{Name: state, Address: l.address(state), Current: state == l.State}
		if !l.Later {
			f.Count = fmt.Sprint(records)
		}
		l.Filters = append(l.Filters, f)
	}
}

func (l *list) title() string {
	title := "Operations: " + l.State
	if l.State == states[0] {
		title = "Uncertain operations"
	}
	if l.User != "" {
		title += " of " + visible.Text(l.User)
	}
	return title
}

// address leads to the first page of a state.
func (l *list) address(state string) string {
	values := url.Values{"state": {state}}
	if l.User != "" {
		values.Set("user", l.User)
	}
	return "?" + values.Encode()
}

// behind is where a page begins: behind the last entry of the page before. A listing needs no more of it than this.
func behind(e idempotency.Entry) string {
	return "&after=" + hex.EncodeToString(e.Digest[:]) + "&created=" + url.QueryEscape(e.Created.UTC().Format(time.RFC3339Nano))
}

// parseBehind reads what behind has made. It returns nil for the first page.
func parseBehind(asked url.Values) (*idempotency.Entry, error) {
	if !asked.Has("after") {
		return nil, nil
	}
	digest, malformed := parseDigest(asked.Get("after"))
	created, err := time.Parse(time.RFC3339Nano, asked.Get("created"))
	return &idempotency.Entry{Digest: digest, Created: created}, cmp.Or(malformed, err)
}
