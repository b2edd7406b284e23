package probe

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Check describes a check.
type Check struct {
	// Name is the name of the check, for Service.Only and Service.Skip.
	Name string `json:"name"`

	// Demands says what the check demands of the service.
	Demands string `json:"demands"`

	// Source says who demands it, for example a section of an RFC.
	Source string `json:"source"`
}

// Status is how a check ended.
type Status string

const (
	// Passed means that the service met the demand of the check.
	Passed Status = "passed"

	// Failed means that the service broke the demand of the check. Result.Exchanges has the proof.
	Failed Status = "failed"

	// PartlyMade means that the answers are as demanded, but a part of the check could not be made, for example because
	// Service.Effects is nil. Result.Detail says which part.
	PartlyMade Status = "partly made"

	// NotMade means that the check could not be made. Result.Detail says why.
	NotMade Status = "not made"

	// Skipped means that Service.Skip has the name of the check, or that Service.Only lacks it.
	Skipped Status = "skipped"
)

// Result is the result of a check.
type Result struct {
	Check
	Status Status `json:"status"`

	// Detail says what the service did wrong, what the check lacked, or why it was skipped.
	Detail string `json:"detail,omitempty"`

	// Exchanges prove a failure, in the order in which they were made.
	Exchanges []Exchange `json:"exchanges,omitempty"`

	// Decisions are the decisions of the service that the check saw.
	Decisions []Decision `json:"decisions,omitempty"`

	// Notes are further information, for example how long a key was blocked.
	Notes []string `json:"notes,omitempty"`

	// IsInterrupted reports whether a check was not made because something else than the service ended it: an error of
	// Service.Effects, Service.Kill or Service.Start, the end of the context, or Service.MaxRequests.
	IsInterrupted bool `json:"interrupted,omitempty"`

	// Duration is how long the check took.
	Duration time.Duration `json:"-"`
}

// Decision is a free choice of a service.
type Decision struct {
	// Name is the name of the decision, for Service.Decided.
	Name string `json:"name"`

	// Value is the decision of the service as the probe saw it.
	Value string `json:"value"`
}

// Exchange is a request with its answer.
type Exchange struct {
	// Curl is a shell command that sends the request. Credentials are replaced by variables of the shell.
	Curl string `json:"curl"`

	// Answer is the answer of the service with header and body, or the reason for a missing answer.
	Answer string `json:"answer"`
}

// Report is the results of all checks.
type Report struct {
	// Results has the result of each check, in the order of Checks.
	Results []Result `json:"results"`

	// Requests is how many requests the probe sent.
	Requests int `json:"requests"`
}

// HasFailures reports whether a check failed.
func (r *Report) HasFailures() bool { return r.Count(Failed) > 0 }

// IsInterrupted reports whether a check was interrupted, so that the report is incomplete.
func (r *Report) IsInterrupted() bool {
	return slices.ContainsFunc(r.Results, func(result Result) bool { return result.IsInterrupted })
}

// Count returns how many checks ended with status.
func (r *Report) Count(status Status) int {
	count := 0
	for _, result := range r.Results {
		if result.Status == status {
			count++
		}
	}
	return count
}

// Decisions returns the decisions of all checks.
func (r *Report) Decisions() []Decision {
	var decisions []Decision
	for _, result := range r.Results {
		decisions = append(decisions, result.Decisions...)
	}
	return decisions
}

// Explain describes the result in several lines, with demand, decisions, notes and exchanges.
func (r *Result) Explain() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s", r.Name, r.Status)
	if r.Detail != "" {
		fmt.Fprintf(&text, ": %s", escape(r.Detail))
	}
	fmt.Fprintf(&text, "\ndemanded: %s (%s)", r.Demands, r.Source)
	for _, decision := range r.Decisions {
		fmt.Fprintf(&text, "\ndecision: %s = %s", decision.Name, decision.Value)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&text, "\nseen: %s", escape(note))
	}
	for i, shown := range r.Exchanges {
		fmt.Fprintf(&text, "\n\n%d. %s\n%s", i+1, shown.Curl, shown.Answer)
	}
	return text.String()
}
