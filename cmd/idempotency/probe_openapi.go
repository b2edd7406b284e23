package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/probe"
	"github.com/idempotency-go/idempotency/probe/contract"
)

// compareDescription compares an OpenAPI description with the service at c.URL, or reads it alone if there is no address.
func (c *probeCommand) compareDescription(ctx context.Context, a *app) error {
	opts := contract.Options{URL: c.URL, Header: c.KeyHeader}
	header, err := parseFields("--header", c.Header)
	if err == nil && c.Exceptions != "" {
		opts.Exceptions, err = readExceptions(c.Exceptions)
	}
	if err != nil {
		return &exitError{exitUsage, err}
	}
	opts.Authorize = func(r *http.Request) {
		for name, values := range header {
			r.Header[name] = values
		}
	}
	opts.Probe = func(service *probe.Service) {
		service.Timeout, service.MaxRequests, service.Varies, service.TLS = a.flags.Timeout, c.MaxRequests, c.Varies, c.newTLS()
	}
	if c.URL != "" {
		if err := c.requireNear(ctx, []string{c.URL}); err != nil {
			return err
		}
	}
	report, err := contract.Check(ctx, c.OpenAPI, opts)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if a.flags.JSON {
		if err := writeJSON(a.out, report); err != nil {
			return err
		}
	} else {
		a.showContract(report)
	}
	if report.HasFindings() {
		return exitSilently(exitNothing)
	}
	return nil
}

func readExceptions(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--exceptions: %w", err)
	}
	defer func() { _ = file.Close() }()
	exceptions, err := contract.ReadExceptions(file)
	if err != nil {
		return nil, fmt.Errorf("--exceptions: %w", err)
	}
	return exceptions, nil
}

// showContract prints a table of the operations, and the findings.
func (a *app) showContract(report *contract.Report) {
	table := newTable(a.out)
	for _, operation := range report.Operations {
		verdict, code, detail := "ok", green, ""
		switch {
		case len(operation.Findings) > 0:
			verdict, code = "differs", red
			detail, _, _ = strings.Cut(strings.Join(operation.Findings, "; "), "\n")
		case operation.Exception != "":
			verdict, code, detail = "exception", plain, operation.Exception
		case operation.NotAsked != "":
			verdict, code = "not asked", yellow
			detail, _, _ = strings.Cut(operation.NotAsked, "\n")
		}
		name, keyUse := visible.Text(operation.Name), "key "+string(operation.KeyUse)
		table.writeRow(name, keyUse, a.style.colourText(code, verdict), visible.Text(detail))
	}
	table.flush()
	for _, finding := range report.Findings {
		fmt.Fprintln(a.out, visible.Text(finding))
	}
	for _, operation := range report.Operations {
		for _, finding := range operation.Findings {
			if strings.Contains(finding, "\n") { // an exchange
				fmt.Fprintf(a.out, "\n%s: %s\n", visible.Text(operation.Name), finding)
			}
		}
	}
}
