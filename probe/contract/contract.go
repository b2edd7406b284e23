package contract

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/idempotency-go/idempotency/probe"
)

// Options are the service and the exceptions. The zero value reads the description only.
type Options struct {
	// URL is the address of the service, to which the paths of the description are added. With an URL, each operation
	// that declares a key is asked with the examples of the description, so that its effect happens. Empty asks nothing.
	URL string

	// Authorize adds credentials to a request. Nil adds nothing.
	Authorize func(*http.Request)

	// Header is the name of the header of the key. Empty means Idempotency-Key.
	Header string

	// Methods are the methods whose operations need a key. Nil means POST and PATCH, because PUT and DELETE are
	// idempotent (RFC 9110, section 9.2.2).
	Methods []string

	// Exceptions has the reason for each operation that needs no key, for example "POST /search": "only reads".
	Exceptions map[string]string

	// Probe adapts the requests to a service, for example its Timeout. Nil changes nothing.
	Probe func(*probe.Service)
}

// Operation is what was found for one operation.
type Operation struct {
	// Name is the method and the path of the description, for example POST /payments.
	Name string `json:"name"`

	// KeyUse is what the description says of the key.
	KeyUse KeyUse `json:"key"`

	// Exception is the reason for which the operation needs no key, from Options.Exceptions.
	Exception string `json:"exception,omitempty"`

	// IsAsked reports whether the service was asked.
	IsAsked bool `json:"asked"`

	// NotAsked is the reason for which the service was not asked, if Options.URL is set.
	NotAsked string `json:"notAsked,omitempty"`

	// Findings are the differences between the description, the route and the exceptions.
	Findings []string `json:"findings,omitempty"`
}

// Report is what was found for all operations.
type Report struct {
	// Operations has each operation with one of Options.Methods.
	Operations []Operation `json:"operations"`

	// Findings are findings that belong to no operation.
	Findings []string `json:"findings,omitempty"`
}

// HasFindings reports whether anything differs.
func (r *Report) HasFindings() bool {
	return len(r.Findings) > 0 || slices.ContainsFunc(r.Operations, func(o Operation) bool { return len(o.Findings) > 0 })
}

// Check compares the description in the file at path with the service. An error means that the description is invalid.
func Check(ctx context.Context, path string, opts Options) (*Report, error) {
	document, err := openapi3.NewLoader().LoadFromFile(path)
	if err == nil {
		err = document.Validate(ctx, openapi3.DisableExamplesValidation())
	}
	if err != nil {
		return nil, fmt.Errorf("idempotency: the description cannot be read: %w", err)
	}
	opts = opts.withDefaults()
	report := new(Report)
	operations := listOperations(document, opts.Methods, opts.Header)
	for _, o := range operations {
		report.Operations = append(report.Operations, opts.compare(ctx, o))
	}
	for _, name := range slices.Sorted(maps.Keys(opts.Exceptions)) {
		if !slices.ContainsFunc(operations, func(o *operation) bool { return o.name() == name }) {
			report.Findings = append(report.Findings, fmt.Sprintf("the exception %q names no operation", name))
		}
	}
	return report, nil
}

// Test makes each operation of the description in the file at path a subtest of t, which fails if anything differs.
func Test(t *testing.T, path string, opts Options) {
	t.Helper()
	report, err := Check(t.Context(), path, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range report.Findings {
		t.Error(finding)
	}
	for _, o := range report.Operations {
		t.Run(o.Name, func(t *testing.T) {
			for _, finding := range o.Findings {
				t.Error(finding)
			}
			if o.NotAsked != "" {
				t.Log("not asked: " + o.NotAsked)
			}
		})
	}
}

// ReadExceptions reads exceptions in lines like "POST /search: only reads". Empty lines and lines that begin with # are left
// out.
func ReadExceptions(r io.Reader) (map[string]string, error) {
	exceptions := make(map[string]string)
	lines := bufio.NewScanner(r)
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, _ := strings.Cut(line, ": ")
		if reason = strings.TrimSpace(reason); reason == "" {
			return nil, fmt.Errorf("idempotency: line %d of the exceptions has no reason: want \"POST /path: reason\"", number)
		}
		exceptions[strings.TrimSpace(name)] = reason
	}
	return exceptions, lines.Err()
}

func (o Options) withDefaults() Options {
	if o.Header == "" {
		o.Header = "Idempotency-Key"
	}
	if o.Methods == nil {
		o.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	return o
}

// compare compares what the description, the exceptions and the route say of one operation.
func (o Options) compare(ctx context.Context, described *operation) Operation {
	reason, isException := o.Exceptions[described.name()]
	found := Operation{Name: described.name(), KeyUse: described.keyUse, Exception: reason}
	switch isDeclared := described.keyUse != KeyUndeclared; {
	case !isDeclared && isException:
		return found
	case !isDeclared:
		found.addFinding("declares no %s, and is no exception", o.Header)
	case isException:
		found.addFinding("declares %s, so that the exception is not needed", o.Header)
	case !described.documents("409") && !described.documents("422"):
		found.addFinding("documents no refusal of a key: 409 or 422")
	}
	if described.keyUse == KeyRequired && !described.documents("400") {
		found.addFinding("requires %s, and documents no 400 for a request without it", o.Header)
	}
	if o.URL != "" && described.keyUse != KeyUndeclared {
		o.ask(ctx, described, &found)
	}
	return found
}

func (o *Operation) addFinding(format string, args ...any) {
	o.Findings = append(o.Findings, fmt.Sprintf(format, args...))
}

// ask makes the checks of package probe that show whether the route does what the description says.
func (o Options) ask(ctx context.Context, described *operation, found *Operation) {
	requests, err := described.exampleRequests(o.Header)
	if err != nil {
		found.NotAsked = strings.TrimPrefix(err.Error(), "idempotency: ")
		return
	}
	service := probe.Service{URLs: []string{o.URL}, Header: o.Header, Request: requests[0], Only: []string{"replay", "key-missing"}}
	if len(requests) > 1 {
		service.Other = requests[1]
		service.Only = append(service.Only, "other-content")
	}
	if o.Authorize != nil {
		service.As = func(r *http.Request, _ string) { o.Authorize(r) }
	}
	if o.Probe != nil {
		o.Probe(&service)
	}
	report, err := probe.MakeChecks(ctx, service, nil)
	if errors.Is(err, probe.ErrNotExecuted) {
		found.NotAsked = "the service does not execute the example: " + err.Error()
		return
	}
	if err != nil {
		found.NotAsked = err.Error()
		return
	}
	found.IsAsked = !report.IsInterrupted()
	if !found.IsAsked {
		found.NotAsked = "the checks were interrupted"
	}
	found.judge(described, report)
}

// judge adds the findings of the checks.
func (o *Operation) judge(described *operation, report *probe.Report) {
	for _, result := range report.Results {
		if result.Status == probe.Failed {
			o.Findings = append(o.Findings, result.Explain())
		}
	}
	for _, decision := range report.Decisions() {
		isExecuted := decision.Value == "executed"
		switch {
		case decision.Name == "key-missing" && isExecuted && described.keyUse == KeyRequired:
			o.addFinding("requires a key, and the service executes a request without one")
		case decision.Name == "key-missing" && !isExecuted && described.keyUse == KeyOptional:
			o.addFinding("declares an optional key, and the service refuses a request without one with %s", decision.Value)
		}
		isRefusal := decision.Name == "key-missing" || decision.Name == "other-content"
		if isRefusal && !isExecuted && !described.documents(decision.Value) {
			o.addFinding("does not document %s, with which the service refuses: %s", decision.Value, decision.Name)
		}
	}
}
