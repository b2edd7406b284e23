package gqlgenidempotency

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/http"
	"slices"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/idempotency-go/idempotency"
)

// The statuses of stored answers, for their readers and for stores that roll back what was refused.
const (
	statusOK     = http.StatusOK
	statusFailed = http.StatusUnprocessableEntity // the resolver returned an error
)

// stored is the body of a stored answer. Its errors are detached from the document, see [call.detached].
type stored struct {
	Selection string          `json:"selection,omitempty"` // empty: that of every retry
	Data      json.RawMessage `json:"data"`
	Errors    gqlerror.List   `json:"errors,omitempty"`
}

func (c *call) stored(errs gqlerror.List) stored {
	return stored{Selection: c.selection, Data: c.data, Errors: c.detached(errs)}
}

// A retry may give the field another alias, and write the document in another way. So the errors that are stored have
// placeholders for the alias, at the beginning of a path, and for the place of a field in the document.
const aliasPlaceholder = ast.PathName("")

var placePlaceholder = gqlerror.Location{}

// detached returns copies of errs with placeholders. Paths and locations that do not lead to the field stay as they are: the
// resolver may have the error from another server.
func (c *call) detached(errs gqlerror.List) gqlerror.List {
	copies := slices.Clone(errs)
	for i, e := range errs {
		if len(e.Path) == 0 || e.Path[0] != ast.PathName(c.field.Alias) {
			continue
		}
		detached := *e
		if len(e.Locations) == 1 && e.Locations[0] == c.placeOf(e.Path) {
			detached.Locations = []gqlerror.Location{placePlaceholder}
		}
		detached.Path = slices.Clone(e.Path)
		detached.Path[0] = aliasPlaceholder
		copies[i] = &detached
	}
	return copies
}

// attach puts alias and places of this document into stored errors.
func (c *call) attach(errs gqlerror.List) {
	for _, e := range errs {
		if e == nil || len(e.Path) == 0 || e.Path[0] != aliasPlaceholder {
			continue
		}
		e.Path[0] = ast.PathName(c.field.Alias)
		if len(e.Locations) == 1 && e.Locations[0] == placePlaceholder {
			e.Locations[0] = c.placeOf(e.Path)
		}
	}
}

// placeOf returns where in the document the field is that a path leads to.
func (c *call) placeOf(path ast.Path) gqlerror.Location {
	field := c.field
	for _, element := range path[1:] {
		alias, ok := element.(ast.PathName)
		if !ok { // it is an index
			continue
		}
		below := graphql.CollectFields(graphql.GetOperationContext(c.ctx), field.Selections, nil)
		i := slices.IndexFunc(below, func(f graphql.CollectedField) bool { return f.Alias == string(alias) })
		if i < 0 {
			return gqlerror.Location{}
		}
		field = below[i]
	}
	if field.Position == nil {
		return gqlerror.Location{}
	}
	return gqlerror.Location{Line: field.Position.Line, Column: field.Position.Column}
}

// newResponse returns what is stored of an answer. What cannot be stored is left out.
func newResponse(status int, answer stored, most int64) idempotency.Response {
	body, err := json.Marshal(answer)
	if err != nil || int64(len(body)) > most {
		return idempotency.Response{Status: status, Omitted: true}
	}
	header := idempotency.NewFields(http.Header{"Content-Type": {"application/json"}})
	return idempotency.Response{Status: status, Header: header, Body: body}
}

// replay answers with a stored answer.
func (c *call) replay(resp idempotency.Response) (graphql.Marshaler, *gqlerror.Error) {
	var answer stored
	reader := json.NewDecoder(bytes.NewReader(resp.Body))
	reader.UseNumber() // every digit in the extensions of errors counts
	err := reader.Decode(&answer)
	switch {
	case err != nil || answer.Data == nil:
		return nil, refusal(recordUnreadable(cmp.Or(err, errors.New("no data"))))
	case answer.Selection != "" && answer.Selection != c.selection:
		return nil, refusal(selectionDiffers())
	}
	c.attach(answer.Errors)
	r := c.ctx.Value(replaysKey{}).(*replays)
	r.fields, r.errors = append(r.fields, c.field.Alias), append(r.errors, answer.Errors...)
	return marshaled(answer.Data), nil
}

// replays are the fields of a response that are answered by the store, and their errors. Fields of a mutation run one
// after the other.
type replays struct {
	fields []string
	errors gqlerror.List
}

type replaysKey struct{}
