package console

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// searchForm has the values of the form for searches.
type searchForm struct{ url.Values }

// searchField is a field of the form for searches, below the field of the operation ID.
type searchField struct{ Name, Label, Hint string }

var searchFields = []searchField{
	{"key", "Idempotency-Key", "As the client has sent it."},
	{"user", "User", "As the service names it."},
	{"endpoint", "Endpoint", "Method and path, such as POST /payments."},
	{"since", "Since", "In UTC, such as 2026-11-29 or 2026-11-29 08:00."},
	{"before", "Before", "In UTC, too."},
}

// Fields returns searchFields to the template.
func (searchForm) Fields() []searchField { return searchFields }

// HasFields reports whether the form has a value in one of searchFields, so that the page shows these fields.
func (f searchForm) HasFields() bool {
	return slices.ContainsFunc(searchFields, func(field searchField) bool { return f.Get(field.Name) != "" })
}

// serveSearch redirects to the operation or the list that a form describes. The form is posted because servers log addresses and
// browsers remember them, and a key must not appear there.
func (c *Console) serveSearch(req *request) {
	form, ok := req.parseForm()
	if !ok {
		return
	}
	searched := &searchForm{form}
	user, endpoint, key := form.Get("user"), form.Get("endpoint"), form.Get("key")
	switch {
	case form.Get("operation") != "":
		c.searchOperation(req, searched)
	case user != "" && endpoint != "" && key != "":
		req.redirectTo(operationAddress(clientKey(user, endpoint, key).OperationID()))
	case user != "" && endpoint == "" && key == "" && form.Get("since") == "" && form.Get("before") == "":
		req.redirectTo("./" + (&listPage{User: user}).firstPageAddress(allStates))
	case !searched.HasFields():
		searched.refuseSearch(req, http.StatusUnprocessableEntity, "Fill in an operation ID, or any of the other fields.")
	default:
		c.searchRecords(req, searched)
	}
}

// searchRecords shows the newest records with the parts of the key and the times in the form. The store reads all of its records.
func (c *Console) searchRecords(req *request, searched *searchForm) {
	since, sinceErr := parseTime(searched.Get("since"))
	before, beforeErr := parseTime(searched.Get("before"))
	if sinceErr != nil || beforeErr != nil {
		searched.refuseSearch(req, http.StatusUnprocessableEntity, "A time is a date, such as 2026-11-29, or date and time, such as 2026-11-29 08:00.")
		return
	}
	key := clientKey(searched.Get("user"), searched.Get("endpoint"), searched.Get("key"))
	listing, err := c.store.List(req.httpRequest.Context(), idempotency.ListRequest{
		User: key.User, Endpoint: key.Endpoint, ID: key.ID, Since: since, Before: before, Limit: operationsPerPage + 1,
	})
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		searched.refuseSearch(req, http.StatusNotImplemented,
			"This store does not keep these parts of keys. User, endpoint and key together lead to the operation, as does its ID.")
	case err != nil:
		c.reportStoreError(req, err, "./")
	default:
		list := &listPage{State: allStates, IsSearch: true, Partial: listing.Partial, Unreadable: listing.Unreadable}
		list.addRows(req, listing.Entries)
		req.writePage(http.StatusOK, pageData{Title: "Operations found", List: list, Find: searched})
	}
}

// parseTime returns the time in a field of the form, in UTC. An empty text is the zero time.
func parseTime(text string) (time.Time, error) {
	text = strings.Replace(strings.TrimSpace(text), "T", " ", 1)
	if text == "" {
		return time.Time{}, nil
	}
	var t time.Time
	var err error
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", time.DateTime, "2006-01-02 15:04:05Z"} {
		if t, err = time.Parse(layout, text); err == nil {
			break
		}
	}
	return t, err
}

// clientKey returns the key of an operation from the Idempotency-Key that a client has sent, in quotes or bare. Any other text is
// taken as the ID itself, because a Runner accepts any ID.
func clientKey(user, endpoint, sent string) idempotency.Key {
	id, err := idempotency.ParseKey([]string{sent})
	if err != nil {
		id = sent
	}
	return idempotency.Key{User: user, Endpoint: endpoint, ID: id}.Bounded()
}

func (f *searchForm) refuseSearch(req *request, status int, why string) {
	req.writePage(status, pageData{Title: "Search", Fault: why, Find: f, Back: "./"})
}

// searchOperation redirects to the operation with the ID that logs, traces and refusals show.
func (c *Console) searchOperation(req *request, searched *searchForm) {
	operation, err := uuid.Parse(strings.TrimSpace(searched.Get("operation")))
	if err != nil {
		searched.refuseSearch(req, http.StatusUnprocessableEntity, "An operation ID is a UUID.")
		return
	}
	req.redirectTo(operationAddress(operation))
}

func operationAddress(operation uuid.UUID) string { return "operation?id=" + operation.String() }
