package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// operationsPerPage is the number of operations on a page of the list.
const operationsPerPage = 50

// listPage is the data of a page with a list of operations.
type listPage struct {
	State      string
	User       string
	Filters    []stateFilter
	Rows       []listRow
	First      string // the address of the first page
	More       string // the address of the next page
	Later      bool   // the page is the second or a later page of the list
	IsSearch   bool   // the list has the newest results of a search
	HasMore    bool   // the search has more results
	Partial    bool
	Unreadable int
}

// stateFilter is a link to the operations in a state, with their number.
type stateFilter struct {
	Name    string
	Address string
	Count   string
	Current bool
}

// listRow is an operation in the list.
type listRow struct {
	idempotency.Entry
	Address string
	Parts   []string // user, endpoint and ID of the key, if the operator may see them
}

const allStates = "all"

var listStates = []string{
	string(idempotency.StateAbandoned), string(idempotency.StateReleased), string(idempotency.StateRunning),
	string(idempotency.StateCompleted), allStates,
}

// serveList lists the operations in a state. The default is abandoned operations, because their outcome is unknown and they wait
// for an operator.
func (c *Console) serveList(req *request) {
	query := req.httpRequest.URL.Query()
	list := &listPage{State: query.Get("state"), User: query.Get("user")}
	if list.State == "" {
		list.State = listStates[0]
	}
	after, err := parsePageStart(query)
	if err != nil || !slices.Contains(listStates, list.State) {
		req.writeRefusal(http.StatusBadRequest, "Not readable", "The console has not made this address.", "./")
		return
	}
	list.Later, list.First = after != nil, list.firstPageAddress(list.State)
	err = c.fillList(req, list, after)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		(&searchForm{}).refuseSearch(req, http.StatusNotImplemented,
			"This store cannot list these operations. Search by user, endpoint and key together.")
	case err != nil:
		c.reportStoreError(req, err, "./")
	default:
		req.writePage(http.StatusOK, pageData{Title: list.listTitle(), List: list, Find: &searchForm{}})
	}
}

// fillList loads a page of the list from the store. The first page also shows the totals of all states, which need a second
// call of List unless the list is of all states.
func (c *Console) fillList(req *request, list *listPage, after *idempotency.Entry) error {
	listRequest := idempotency.ListRequest{User: list.User, Limit: operationsPerPage + 1, After: after}
	if list.OldestFirst() {
		listRequest.Order = idempotency.OldestFirst
	}
	if list.State != allStates {
		listRequest.States = []idempotency.State{idempotency.State(list.State)}
	}
	listing, err := c.store.List(req.httpRequest.Context(), listRequest)
	if err != nil {
		return err
	}
	list.Partial, list.Unreadable = listing.Partial, listing.Unreadable
	list.addRows(req, listing.Entries)
	if list.HasMore {
		list.More = list.First + nextPageParams(listing.Entries[operationsPerPage-1])
	}
	if list.State != allStates && !list.Later {
		listing, err = c.store.List(req.httpRequest.Context(), idempotency.ListRequest{User: list.User, Limit: 1})
	}
	list.addFilters(listing.Totals)
	return err
}

// addRows adds the entries of a page. HasMore reports that there are more.
func (l *listPage) addRows(req *request, entries []idempotency.Entry) {
	l.HasMore = len(entries) > operationsPerPage
	for _, e := range entries[:min(len(entries), operationsPerPage)] {
		row := listRow{Entry: e, Address: operationAddress(e.Operation)}
		if req.mayShow && e.Key != (idempotency.Key{}) {
			row.Parts = []string{e.Key.User, e.Key.Endpoint, e.Key.ID}
		}
		l.Rows = append(l.Rows, row)
	}
}

// OldestFirst reports that the list begins with the oldest operations, because these have waited longest for an operator. All
// other lists begin with the newest operations.
func (l *listPage) OldestFirst() bool { return l.State == listStates[0] }

// addFilters adds the links to all states. Only the first page has totals.
func (l *listPage) addFilters(totals map[idempotency.State]idempotency.Total) {
	all := 0
	for _, total := range totals {
		all += total.Records
	}
	for _, state := range listStates {
		records := totals[idempotency.State(state)].Records
		if state == allStates {
			records = all
		}
		f := stateFilter{Name: state, Address: l.firstPageAddress(state), Current: state == l.State}
		if !l.Later {
			f.Count = fmt.Sprint(records)
		}
		l.Filters = append(l.Filters, f)
	}
}

func (l *listPage) listTitle() string {
	title := "Operations: " + l.State
	if l.State == listStates[0] {
		title = "Abandoned operations"
	}
	if l.User != "" {
		title += " of " + visible.Text(l.User)
	}
	return title
}

// firstPageAddress returns the address of the first page with the operations in state.
func (l *listPage) firstPageAddress(state string) string {
	values := url.Values{"state": {state}}
	if l.User != "" {
		values.Set("user", l.User)
	}
	return "?" + values.Encode()
}

// nextPageParams returns the parameters of the page after e. ID and creation time of the last entry are enough for List to
// continue.
func nextPageParams(e idempotency.Entry) string {
	return "&after=" + e.Operation.String() + "&created=" + url.QueryEscape(e.Created.UTC().Format(time.RFC3339Nano))
}

// parsePageStart parses the parameters by nextPageParams. parsePageStart returns nil for the first page.
func parsePageStart(query url.Values) (*idempotency.Entry, error) {
	if !query.Has("after") {
		return nil, nil
	}
	operation, malformed := uuid.Parse(query.Get("after"))
	created, err := time.Parse(time.RFC3339Nano, query.Get("created"))
	return &idempotency.Entry{Operation: operation, Created: created}, cmp.Or(malformed, err)
}
