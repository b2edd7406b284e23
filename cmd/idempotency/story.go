package main

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
)

// describeAbsence describes a key without a record.
func describeAbsence(operation string) string {
	return "There is no record of this key. It was never used by this user at this endpoint, or the service has freed it, " +
		"or its record has expired, or it was forgotten. The next request with it is executed. In logs and traces, " +
		"its operation is " + operation + "."
}

// describeEntry describes in plain English the state of the operation, and the answer to a retry.
func describeEntry(e idempotency.Entry, damage error) string {
	if damage != nil {
		return "The record of this key cannot be read. Until it has expired or is forgotten, a request with the key is " +
			"refused with 503 store-unavailable, and nothing runs. Whether the operation was executed is not known here."
	}
	switch e.State {
	case idempotency.StateRunning:
		return describeRunning(e)
	case idempotency.StateAbandoned:
		return fmt.Sprintf("Attempt %d was abandoned: %s. Nobody knows what it has done. The next request like it makes attempt "+
			"%d at the same operation. But if the service refuses abandoned operations, the request gets 409 outcome-unknown, "+
			"and nothing runs.",
			e.Attempt, describeEnd(e, "its process died, stood still or lost the store, and its lease has lapsed"), e.Attempt+1) +
			describeSteps(e)
	case idempotency.StateReleased:
		return fmt.Sprintf("Attempt %d has ended without an answer that counts: %s%s. The next request like it makes attempt %d at "+
			"the same operation.",
			e.Attempt, describeEnd(e, "the service failed, or said that the request may be tried again"), describeResolution(e),
			e.Attempt+1) + describeSteps(e)
	case idempotency.StateCompleted:
		return describeCompleted(e)
	default:
		return "The store tells a state that this program does not know."
	}
}

// describeEnd returns the reason why the last attempt has ended, or the guess if the record has none.
func describeEnd(e idempotency.Entry, guess string) string { return cmp.Or(e.Ended.Describe(), guess) }

// describeResolution returns a clause about the resolution of the last attempt, or "".
func describeResolution(e idempotency.Entry) string {
	if e.Resolved == nil || e.Resolved.Happened || e.Resolved.Attempt != e.Attempt {
		return ""
	}
	return ", or rather: it was resolved as not happened"
}

// describeSteps returns a sentence about steps in the next attempt, or "".
func describeSteps(e idempotency.Entry) string {
	if len(e.Steps) == 0 {
		return ""
	}
	return " Steps that are done are not repeated."
}

func describeRunning(e idempotency.Entry) string {
	const refused = "A retry is refused with 409 in-progress, or waits for the answer."
	return fmt.Sprintf("Attempt %d is running now. %s The owner renews its lease for as long as it lives; if it dies, "+
		"the lease lapses in %s.", e.Attempt, refused, formatDuration(e.LeaseLeft))
}

func describeCompleted(e idempotency.Entry) string {
	when := ""
	if !e.Completed.IsZero() {
		when = " at " + formatTime(e.Completed)
	}
	done := fmt.Sprintf("The operation was completed by attempt %d%s. ", e.Attempt, when)
	switch {
	case e.Response != nil && e.Response.Omitted:
		return done + "Its answer was not kept: a retry is refused with 409 not-replayable, and nothing runs again."
	case e.Status == 0:
		return done + "A retry gets the stored answer; nothing runs again."
	default:
		return done + fmt.Sprintf("A retry gets the stored answer, status %d; nothing runs again.", e.Status)
	}
}

// describeForgetting describes the effects that may happen again after the record is forgotten.
func describeForgetting(e idempotency.Entry, damage error) string {
	const again = "If the record is forgotten, the next request with this key is executed as if it were the first. "
	const same = " Effects that are kept under its operation ID, or under a downstream key, are found again: these stay the same."
	switch {
	case damage != nil:
		return again + "The record cannot be read. If the operation was executed, its effects happen a second time." + same
	case len(e.Steps) > 0:
		return again + "The results of its steps are forgotten, too: what they have done happens A SECOND TIME." + same
	case e.State == idempotency.StateCompleted:
		return again + "This operation was completed: its effects, such as a charge, happen A SECOND TIME." + same
	case e.State == idempotency.StateAbandoned:
		return again + "Nobody knows what the abandoned attempt has done. If its effects took place, they happen a second " +
			"time: find out first, and resolve it instead." + same
	default:
		return again + "The last attempt has ended without an answer that counts, so a retry is executed in any case, but " +
			"for the same request only."
	}
}

// wrapText breaks text into lines of at most 100 characters.
func wrapText(text string) string {
	const width = 100
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		switch size := utf8.RuneCountInString(word); {
		case column > 0 && column+1+size > width:
			b.WriteString("\n")
			column = size
		case column > 0:
			b.WriteString(" ")
			column += 1 + size
		default:
			column = size
		}
		b.WriteString(word)
	}
	return b.String() + "\n"
}

// formatTime returns t for people, or "" for the zero time.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 UTC")
}

// formatDuration returns d for people, or "" unless d is positive.
func formatDuration(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return visible.Duration(d)
}

func formatBytes(n int64) string {
	if n == 1 {
		return "1 byte"
	}
	return fmt.Sprintf("%d bytes", n)
}

func formatStatus(status int) string {
	switch text := http.StatusText(status); {
	case status == 0:
		return ""
	case text == "":
		return fmt.Sprint(status)
	default:
		return fmt.Sprintf("%d %s", status, text)
	}
}

// headerLines returns the lines of the header of an answer. A sealed header has no lines.
func headerLines(r *idempotency.Response) (lines []string) {
	if r == nil || isSealed(r) {
		return nil
	}
	for name, values := range r.Header.Header() {
		for _, value := range values {
			lines = append(lines, name+": "+value)
		}
		if len(values) == 0 {
			lines = append(lines, name+" (removed)")
		}
	}
	slices.Sort(lines)
	return lines
}

// stepLines returns a line for each step. A step with AtMostOnce has two checkpoints: the name with a question mark when the step
// begins, and the name itself with the result when the step is done.
func stepLines(e idempotency.Entry) (lines []string) {
	for i, step := range e.Steps {
		name, begun := strings.CutSuffix(step.Name, "?")
		done := func(s idempotency.StepSize) bool { return s.Name == name }
		switch {
		case step.Name == idempotency.RecordLost:
			lines = append(lines, "the store has lost the record once, so further steps may have begun")
		case !begun:
			lines = append(lines, fmt.Sprintf("%s: done, %s", name, formatBytes(int64(step.Bytes))))
		case !slices.ContainsFunc(e.Steps[:i], done):
			lines = append(lines, name+": begun, its outcome is not known")
		}
	}
	return lines
}

// isSealed reports whether a store of package seal has encrypted the answer.
func isSealed(r *idempotency.Response) bool { return strings.HasPrefix(string(r.Header), sealedPrefix) }

// sealedPrefix begins the header of a sealed answer, and the operator of a sealed resolution.
const sealedPrefix = ":sealed/1 "

// isSealedResolution reports whether a store of package seal has encrypted operator and reason.
func isSealedResolution(r *idempotency.Resolved) bool {
	return strings.HasPrefix(r.Operator, sealedPrefix)
}

// resolutionLines returns the lines about a resolution.
func resolutionLines(r *idempotency.Resolved) (lines []string) {
	if r == nil {
		return nil
	}
	what := "not happened"
	if r.Happened {
		what = "happened"
	}
	lines = []string{fmt.Sprintf("%s, attempt %d, %s", what, r.Attempt, formatTime(r.At))}
	switch {
	case isSealedResolution(r):
		return append(lines, "sealed")
	case r.Operator == "":
		return append(lines, "by Reconcile, a function of the service")
	}
	return append(lines, "by "+visible.Text(r.Operator)+": "+visible.Text(r.Reason))
}
