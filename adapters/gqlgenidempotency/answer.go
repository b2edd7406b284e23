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

// The statuses of stored answers, for people who read records, and for stores that roll back the transaction of a refused
// operation.
const (
	statusSucceeded = http.StatusOK
	statusFailed    = http.StatusUnprocessableEntity // the resolver returned an error
)

// storedAnswer is the body of a stored answer. Errors are independent of the document (see detachErrors).
type storedAnswer struct {
	Selection string          `json:"selection,omitempty"` // digest of the selection; empty matches every selection
	Data      json.RawMessage `json:"data"`
	Errors    gqlerror.List   `json:"errors,omitempty"`
}

func (c *guardedField) newStoredAnswer(errs gqlerror.List) storedAnswer {
	return storedAnswer{Selection: c.selectionDigest, Data: c.data, Errors: c.detachErrors(errs)}
}

// A retry may use a different alias for the field, and a different layout of the document. Stored errors therefore have
// placeholders for the alias, at the beginning of a path, and for the location of a field in the document.
const aliasPlaceholder = ast.PathName("")

var locationPlaceholder = gqlerror.Location{}

// detachErrors returns copies of errs with placeholders. Other paths and locations remain as they are, because the resolver may
// have got an error from another server.
func (c *guardedField) detachErrors(errs gqlerror.List) gqlerror.List {
	detachedErrors := slices.Clone(errs)
	for i, e := range errs {
		if len(e.Path) == 0 || e.Path[0] != ast.PathName(c.field.Alias) {
			continue
		}
		detachedError := *e
		if len(e.Locations) == 1 && e.Locations[0] == c.locateField(e.Path) {
			detachedError.Locations = []gqlerror.Location{locationPlaceholder}
		}
		detachedError.Path = slices.Clone(e.Path)
		detachedError.Path[0] = aliasPlaceholder
		detachedErrors[i] = &detachedError
	}
	return detachedErrors
}

// attachErrors replaces the placeholders in stored errors with the alias and the locations of the current document.
func (c *guardedField) attachErrors(errs gqlerror.List) {
	for _, e := range errs {
		if e == nil || len(e.Path) == 0 || e.Path[0] != aliasPlaceholder {
			continue
		}
		e.Path[0] = ast.PathName(c.field.Alias)
		if len(e.Locations) == 1 && e.Locations[0] == locationPlaceholder {
			e.Locations[0] = c.locateField(e.Path)
		}
	}
}

// locateField returns the location in the document of the field at path, or the zero Location if the document has no such field.
func (c *guardedField) locateField(path ast.Path) gqlerror.Location {
	field := c.field
	for _, element := range path[1:] {
		alias, ok := element.(ast.PathName)
		if !ok { // an index of a list
			continue
		}
		childFields := graphql.CollectFields(graphql.GetOperationContext(c.fieldContext), field.Selections, nil)
		i := slices.IndexFunc(childFields, func(f graphql.CollectedField) bool { return f.Alias == string(alias) })
		if i < 0 {
			return gqlerror.Location{}
		}
		field = childFields[i]
	}
	if field.Position == nil {
		return gqlerror.Location{}
	}
	return gqlerror.Location{Line: field.Position.Line, Column: field.Position.Column}
}

// newResponse returns the stored form of an answer, or a tombstone if the answer cannot be encoded or has more than maxBody bytes.
func newResponse(status int, answer storedAnswer, maxBody int64) idempotency.Response {
	body, err := json.Marshal(answer)
	if err != nil || int64(len(body)) > maxBody {
		return idempotency.Response{Status: status, Omitted: true}
	}
	header := idempotency.NewFields(http.Header{"Content-Type": {"application/json"}})
	return idempotency.Response{Status: status, Header: header, Body: body}
}

// sendReplay answers the field with the stored answer.
func (c *guardedField) sendReplay(resp idempotency.Response) (graphql.Marshaler, *gqlerror.Error) {
	var answer storedAnswer
	reader := json.NewDecoder(bytes.NewReader(resp.Body))
	reader.UseNumber() // every digit in the extensions of errors counts
	err := reader.Decode(&answer)
	switch {
	case err != nil || answer.Data == nil:
		return nil, newRefusal(refuseUnreadableRecord(cmp.Or(err, errors.New("no data"))))
	case answer.Selection != "" && answer.Selection != c.selectionDigest:
		return nil, newRefusal(refuseOtherSelection())
	}
	c.attachErrors(answer.Errors)
	replayed := c.fieldContext.Value(replaysContextKey{}).(*replayedFields)
	replayed.aliases, replayed.fieldErrors = append(replayed.aliases, c.field.Alias), append(replayed.fieldErrors, answer.Errors...)
	return unmarshalResult(answer.Data), nil
}

// replayedFields collects the replayed fields of a response and their errors. A mutex is unnecessary because the fields of a
// mutation run sequentially.
type replayedFields struct {
	aliases     []string
	fieldErrors gqlerror.List
}

type replaysContextKey struct{}
