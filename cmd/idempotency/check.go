package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// checkCommand calls Check of the store and prints the findings.
type checkCommand struct{}

// The severities of findings.
const (
	severityBroken = "broken" // the store fails, or will fail soon
	severityUnsafe = "unsafe" // the store works, but breaks a part of the promise
)

// finding is a finding by Check.
type finding struct {
	Severity string `json:"severity"`
	Problem  string `json:"problem"`
}

func (c *checkCommand) Run(a *app) error {
	store, err := a.openStore()
	if err != nil {
		return err
	}
	defer store.closeClient()
	ctx, cancel := context.WithTimeout(context.Background(), a.flags.Timeout)
	defer cancel()
	findings, err := a.sortFindings(store.Check(ctx))
	if a.flags.JSON {
		if findings == nil {
			findings = []finding{}
		}
		err = errors.Join(err, writeJSON(a.out, struct {
			Store    string    `json:"store"`
			Findings []finding `json:"findings"`
		}{store.description, findings}))
	} else {
		a.showFindings(store, findings, err == nil)
	}
	if err == nil && len(findings) > 0 {
		return exitSilently(exitNothing)
	}
	return err
}

// sortFindings splits err into findings and other errors. failed has the other errors, which mean that Check was incomplete.
func (a *app) sortFindings(err error) (findings []finding, failed error) {
	var others []error
	for _, found := range idempotency.Findings(err) {
		_, unsafe := errors.AsType[*idempotency.UnsafeSetting](found)
		_, unready := errors.AsType[*pgxstore.UnreadyTable](found)
		_, lacking := errors.AsType[*pgxstore.MissingPrivilege](found)
		severity := severityBroken
		switch {
		case unsafe:
			severity = severityUnsafe
		case !unready && !lacking:
			others = append(others, found)
			continue
		}
		findings = append(findings, finding{severity, a.secrets.hideSecrets(found.Error())})
	}
	return findings, errors.Join(others...)
}

func (a *app) showFindings(store *openedStore, findings []finding, complete bool) {
	if len(findings) == 0 && complete {
		fmt.Fprintf(a.out, "No findings: %s is fit to keep records.\n", store.description)
		return
	}
	t := newTable(a.out)
	for _, f := range findings {
		code := yellow
		if f.Severity == severityBroken {
			code = red
		}
		t.writeRow(a.style.colourText(code, f.Severity), visible.Text(f.Problem))
	}
	t.flush()
}
