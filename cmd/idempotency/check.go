package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

// checkCommand runs the Check of the store.
type checkCommand struct{}

// The severities of findings.
const (
	severityBroken = "broken" // the stores do not work, or will not for long
	severityUnsafe = "unsafe" // they work, but a part of the promise does not hold
)

// finding is one that Check has returned.
type finding struct {
	Severity string `json:"severity"`
	Problem  string `json:"problem"`
}

func (c *checkCommand) Run(a *app) error {
	s, err := a.open()
	if err != nil {
		return err
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(context.Background(), a.line.Timeout)
	defer cancel()
	findings, err := a.weigh(s.Check(ctx))
	if a.line.JSON {
		if findings == nil {
			findings = []finding{}
		}
		err = errors.Join(err, writeJSON(a.out, struct {
			Store    string    `json:"store"`
			Findings []finding `json:"findings"`
		}{s.name, findings}))
	} else {
		a.showFindings(s, findings, err == nil)
	}
	if err == nil && len(findings) > 0 {
		return nothing(exitNothing)
	}
	return err
}

// weigh returns the findings that err joins, and what else is in it: the store could not be asked.
func (a *app) weigh(err error) (findings []finding, failed error) {
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
		findings = append(findings, finding{severity, a.secrets.hide(found.Error())})
	}
	return findings, errors.Join(others...)
}

func (a *app) showFindings(s *opened, findings []finding, complete bool) {
	if len(findings) == 0 && complete {
		fmt.Fprintf(a.out, "No findings: %s is fit to keep records.\n", s.name)
		return
	}
	t := newTable(a.out)
	for _, f := range findings {
		code := yellow
		if f.Severity == severityBroken {
			code = red
		}
		t.row(a.style.colour(code, f.Severity), visible.Text(f.Problem))
	}
	t.flush()
}
