package console

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/idempotency-go/idempotency"
)

// storyPage is the data of the page of an operation.
type storyPage struct {
	idempotency.Entry
	Damaged     bool
	Seen        string // recordVersion of the record on the page
	Steps       []stepRow
	Reused      int             // number of requests that were refused with the key
	Reuses      []reusedRequest // the newest of these requests
	Header      string
	Trailer     string
	Body        string
	Cut         bool // Body is only the beginning of the body
	Sealed      bool
	Name        string // the name for DownstreamKey, typed in by the operator
	Downstream  string
	Resolvable  bool
	Forgettable bool
	Typed       url.Values // the form of a change that was refused
}

// stepRow describes a step of the operation by its checkpoints.
type stepRow struct {
	Name, Result string
}

// serveStory shows the operation whose ID is in the address.
func (c *Console) serveStory(req *request) {
	query := req.httpRequest.URL.Query()
	operation, err := uuid.Parse(query.Get("id"))
	if err != nil {
		req.writeRefusal(http.StatusBadRequest, "Not readable", "The console has not made this address.", "./")
		return
	}
	entry, err := c.store.InspectOperation(req.httpRequest.Context(), operation)
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		req.writePage(http.StatusNotFound, pageData{Title: "No record", Back: "./", Fault: "No record of this " +
			"operation was found: it has expired, was forgotten, or never was. The next request with its key is executed."})
	case err != nil && !errors.Is(err, idempotency.ErrRecordInvalid):
		c.reportStoreError(req, err, "./")
	default:
		story := c.newStory(req, entry, err != nil)
		story.Name = query.Get("name")
		if story.Name != "" {
			story.Downstream = idempotency.Operation{ID: entry.Operation}.DownstreamKey(story.Name)
		}
		req.writePage(http.StatusOK, pageData{Title: story.storyTitle(), Done: describeDone(query.Get("done"), entry), Story: story})
	}
}

// newStory returns the page of an entry. damaged means that the record cannot be decoded.
func (c *Console) newStory(req *request, e idempotency.Entry, damaged bool) *storyPage {
	story := &storyPage{Entry: e, Damaged: damaged, Seen: recordVersion(e), Steps: describeSteps(e.Steps)}
	reuses := c.listReuses(e.Operation)
	story.Reused, story.Reuses = len(reuses), reuses[:min(len(reuses), maxShownReuses)]
	story.Resolvable = c.resolver != nil && !damaged && e.State == idempotency.StateAbandoned
	story.Forgettable = e.State != "" && e.State != idempotency.StateRunning
	if r := e.Resolved; r != nil && strings.HasPrefix(r.Operator, sealedPrefix) {
		hidden := *r
		hidden.Operator, hidden.Reason = "sealed: only the service can open the name and the reason", ""
		story.Resolved = &hidden
	}
	resp := e.Response
	if resp == nil {
		return story
	}
	story.Sealed = strings.HasPrefix(string(resp.Header), sealedPrefix)
	if req.mayShow {
		story.Header, story.Trailer = headerLines(resp.Header), headerLines(resp.Trailer)
		story.Cut = len(resp.Body) > maxShownBody
		story.Body = escapeLines(string(resp.Body[:min(len(resp.Body), maxShownBody)]))
	}
	return story
}

// sealedPrefix begins the header of an answer and the operator of a resolution that a store of package seal has encrypted.
const sealedPrefix = ":sealed/"

// headerLines returns fields as lines of text. Valid fields contain printable characters only. Other fields, which a program
// other than this library has stored, are escaped.
func headerLines(fields idempotency.Fields) string {
	if _, err := idempotency.ParseFields(string(fields)); err != nil {
		return escapeLines(string(fields))
	}
	return string(fields)
}

const maxShownBody = 64 << 10 // bytes

func (s *storyPage) storyTitle() string {
	return fmt.Sprintf("Operation %s, %s", s.Operation.String()[:8], cmp.Or(string(s.State), "not readable"))
}

// recordVersion identifies a state of a record by the same values that stores compare before a change.
func recordVersion(e idempotency.Entry) string {
	return fmt.Sprintf("%s %d %s", e.State, e.Attempt, e.Created.UTC().Format(time.RFC3339Nano))
}

// describeSteps returns the state of each step. A step that runs at most once has two checkpoints: the name with a question mark
// when the step begins, and the name itself when the step is done.
func describeSteps(all []idempotency.StepSize) (steps []stepRow) {
	for _, s := range all {
		name, hasBegun := strings.CutSuffix(s.Name, "?")
		isDone := func(other idempotency.StepSize) bool { return other.Name == name }
		switch {
		case s.Name == idempotency.RecordLost:
			steps = append(steps, stepRow{"?", "the store has lost the record once, so further steps may have begun"})
		case !hasBegun:
			steps = append(steps, stepRow{name, fmt.Sprintf("done, %d B", s.Bytes)})
		case !slices.ContainsFunc(all, isDone):
			steps = append(steps, stepRow{name, "begun, its outcome is not known"})
		}
	}
	return steps
}
