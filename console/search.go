package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// searchForm has the values of the form for searches.
type searchForm struct{ url.Values }

// searchField is a field of the form for searches, below the field of the operation ID.
type searchField struct{ Name, Label, Hint string }

var searchFields = []searchField{
	{"key", "Idempotency-Key", "As the client has sent it. It is found with user and endpoint."},
	{"user", "User", "As the service names it. Alone, it lists all operations of the user."},
	{"endpoint", "Endpoint", "Method and path, such as POST /payments."},
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
	case user != "" && endpoint == "" && key == "":
		req.redirectTo("./" + (&listPage{User: user}).firstPageAddress(allStates))
	default:
		searched.refuseSearch(req, http.StatusUnprocessableEntity, "A key is found by user, endpoint and key together. "+
			"A user alone is enough for all operations of that user.")
	}
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
