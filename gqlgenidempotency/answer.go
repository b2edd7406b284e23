package gqlgenidempotency

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"github.com/idempotency-go/idempotency"
)

// The statuses of stored answers, for their readers and for stores that roll back what was refused.
const (
	statusOK     = http.StatusOK
	statusFailed = http.StatusUnprocessableEntity // the resolver returned an error
)

// stored is the body of a stored answer. Paths of its errors begin with the name of the field in the answer.
type stored struct {
	Selection string          `json:"selection,omitempty"` // empty: that of every retry
	Data      json.RawMessage `json:"data"`
	Errors    gqlerror.List   `json:"errors,omitempty"`
}

func (c *call) stored(errs gqlerror.List) stored {
	return stored{Selection: c.selection, Data: c.data, Errors: errs}
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
