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

	"github.com/idempotency-go/idempotency"
)

// story is what the page of one operation shows.
type story struct {
	idempotency.Entry
	Damaged     bool
	Seen        string // the version of the record that the page shows
	Steps       []step
	Reused      int     // requests that were refused with its key
	Reuses      []reuse // the newest of them
	Header      string
	Trailer     string
	Body        string
	Cut         bool // the body is longer
	Sealed      bool
	Name        string // of a downstream key
	Downstream  string
	Resolvable  bool
	Forgettable bool
	Typed       url.Values // what a person has filled in
}

// step is a checkpoint, for people.
type step struct {
	Name, Result string
}

// story shows the operation that the address names.
func (c *Console) story(v *visit) {
	asked := v.r.URL.Query()
	digest, err := parseDigest(asked.Get("digest"))
	if err != nil {
		v.refuse(http.StatusBadRequest, "Not readable", "The console has not made this address.", "./")
		return
	}
	entry, err := c.inspect(v.r.Context(), digest)
	switch {
	case errors.Is(err, idempotency.ErrNoRecord):
		v.write(http.StatusNotFound, page{Title: "No record", Back: "./", Fault: "No record of this " +
			"operation was found: it has expired, was forgotten, or never was. The next request with its key is executed."})
	case err != nil && !errors.Is(err, idempotency.ErrRecordInvalid):
		c.fail(v, err, "./")
	default:
		s := c.tell(v, entry, err != nil)
		s.Name = asked.Get("name")
		if s.Name != "" {
			s.Downstream = idempotency.Operation{ID: entry.OperationID()}.DownstreamKey(s.Name)
		}
		v.write(http.StatusOK, page{Title: s.title(), Done: confirm(asked.Get("done"), entry), Story: s})
	}
}

// tell makes the story of an entry.
func (c *Console) tell(v *visit, e idempotency.Entry, damaged bool) *story {
	s := &story{Entry: e, Damaged: damaged, Seen: version(e), Steps: stepsOf(e.Steps)}
	reuses := c.reusesOf(e.Digest)
	s.Reused, s.Reuses = len(reuses), reuses[:min(len(reuses), reusesShown)]
	s.Resolvable = c.resolver != nil && !damaged && e.State == idempotency.StateAbandoned
	s.Forgettable = e.State != "" && e.State != idempotency.StateRunning
	if r := e.Resolved; r != nil && strings.HasPrefix(r.Operator, sealMark) {
		hidden := *r
		hidden.Operator, hidden.Reason = "sealed: only the service can open the name and the reason", ""
		s.Resolved = &hidden
	}
	resp := e.Response
	if resp == nil {
		return s
	}
	s.Sealed = strings.HasPrefix(string(resp.Header), sealMark)
	if v.shows {
		s.Header, s.Trailer = linesOf(resp.Header), linesOf(resp.Trailer)
		s.Cut = len(resp.Body) > mostBody
		s.Body = visibleLines(string(resp.Body[:min(len(resp.Body), mostBody)]))
	}
	return s
}

// sealMark begins what a store of package seal has stored: the header of an answer, and the operator of a resolution.
const sealMark = ":sealed/"

// linesOf returns the lines of a header, which are visible as they are stored, unless somebody else has stored them.
func linesOf(fields idempotency.Fields) string {
	if _, err := idempotency.ParseFields(string(fields)); err != nil {
		return visibleLines(string(fields))
	}
	return string(fields)
}

const mostBody = 64 << 10 // bytes of a body that are shown

func (s *story) title() string {
	return fmt.Sprintf("Operation %s, %s", s.OperationID().String()[:8], cmp.Or(string(s.State), "not readable"))
}

// version tells one state of a record from others. Stores compare the same.
func version(e idempotency.Entry) string {
	return fmt.Sprintf("%s %d %s", e.State, e.Attempt, e.Created.UTC().Format(time.RFC3339Nano))
}

// stepsOf says of each step whether it is done. One that is done at most once has an entry of its own for its beginning,
// whose name ends in a question mark.
func stepsOf(all []idempotency.StepSize) (steps []step) {
	for _, s := range all {
		name, begun := strings.CutSuffix(s.Name, "?")
		done := func(other idempotency.StepSize) bool { return other.Name == name }
		switch {
		case s.Name == idempotency.RecordLost:
			steps = append(steps, step{"?", "the store has lost the record once, so further steps may have begun"})
		case !begun:
			steps = append(steps, step{name, fmt.Sprintf("done, %d B", s.Bytes)})
		case !slices.ContainsFunc(all, done):
			steps = append(steps, step{name, "begun, its outcome is not known"})
		}
	}
	return steps
}
