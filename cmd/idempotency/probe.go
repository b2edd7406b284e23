package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/idempotency-go/idempotency/internal/visible"
	"github.com/idempotency-go/idempotency/probe"
)

// probeCommand makes the checks of package probe on a service.
type probeCommand struct {
	URL string `arg:"" optional:"" help:"Address of the route, like http://localhost:8080/payments; with --openapi, of the service."`

	Method         string   `group:"Requests" default:"POST" help:"Method of the route."`
	Data           string   `group:"Requests" placeholder:"TEXT" help:"Body of a valid request, or @FILE. {{key}} is the key."`
	Header         []string `group:"Requests" short:"H" sep:"none" placeholder:"FIELD" help:"Header field of all requests."`
	OtherData      string   `group:"Requests" placeholder:"TEXT" help:"Body of another valid request, for example another amount."`
	OtherRoute     string   `group:"Requests" placeholder:"'PUT /path'" help:"Method and path of another route, for the same body."`
	InvalidData    string   `group:"Requests" placeholder:"TEXT" help:"Body that the service refuses with a 4xx."`
	FailingData    string   `group:"Requests" placeholder:"TEXT" help:"Body that the service answers with a 5xx or 429."`
	SlowData       string   `group:"Requests" placeholder:"TEXT" help:"Body that takes long, for example longer than the lease."`
	StreamData     string   `group:"Requests" placeholder:"TEXT" help:"Body with a long or streamed answer."`
	StrangerHeader []string `group:"Requests" sep:"none" placeholder:"FIELD" help:"Header field that authenticates another user."`
	KeyHeader      string   `group:"Requests" default:"Idempotency-Key" help:"Header of the key."`

	OpenAPI    string `group:"Description" name:"openapi" placeholder:"FILE" help:"Compare the routes with a description instead."`
	Exceptions string `group:"Description" placeholder:"FILE" help:"Operations without a key: 'POST /search: only reads'."`

	Instance []string `group:"Service" sep:"none" placeholder:"URL" help:"Base address of a further instance of the service."`
	Effects  string   `group:"Service" placeholder:"COMMAND" help:"Shell command that prints how many effects there are."`
	Start    string   `group:"Service" placeholder:"COMMAND" help:"Shell command that is the service. The probe starts and kills it."`
	Insecure bool     `group:"Service" short:"k" help:"Accept any certificate."`
	Remote   bool     `group:"Service" help:"Allow addresses that are neither loopback nor private."`

	Deaths      int               `group:"Checks" default:"20" help:"How often the service is killed."`
	Bound       time.Duration     `group:"Checks" default:"1m" help:"Longest time for a blocked key; more than the lease."`
	Varies      []string          `group:"Checks" placeholder:"NAME" help:"Header fields of answers that may differ in a replay."`
	Decided     map[string]string `group:"Checks" placeholder:"NAME=VALUE" help:"Decision of the service; another one fails."`
	Only        []string          `group:"Checks" placeholder:"NAME" help:"Make these checks only."`
	Skip        map[string]string `group:"Checks" mapsep:"none" placeholder:"NAME=REASON" help:"Leave a check out, and print why."`
	MaxRequests int               `group:"Checks" default:"10000" help:"Maximum number of requests."`
	JUnit       string            `group:"Checks" name:"junit" placeholder:"FILE" help:"Write the results as JUnit XML, too."`
}

func (c *probeCommand) Run(a *app) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if c.OpenAPI != "" {
		return c.compareDescription(ctx, a)
	}
	service, err := c.newService(a)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	if err := c.requireNear(ctx, service.URLs); err != nil {
		return err
	}
	if c.Start != "" {
		started := &startedService{shellCommand: c.Start, baseURL: service.URLs[0], startTimeout: service.Timeout}
		service.Start, service.Kill = started.start, started.kill
		defer func() { _ = started.kill(context.Background()) }()
		if err := started.start(ctx); err != nil {
			return failWith(exitUnknown, "--start: %w", err)
		}
	}
	report, err := probe.MakeChecks(ctx, service, a.newProgress().observe)
	if err != nil {
		status := exitUnknown
		if errors.Is(err, probe.ErrInvalidService) {
			status = exitUsage
		}
		return failWith(status, "%s", flagNames.Replace(err.Error()))
	}
	if a.flags.JSON {
		if err := writeJSON(a.out, report); err != nil {
			return err
		}
	} else {
		c.showReport(a, report)
	}
	if c.JUnit != "" {
		if err := writeJUnit(c.JUnit, report); err != nil {
			return failWith(exitUnknown, "--junit: %w", err)
		}
	}
	switch {
	case report.HasFailures():
		return exitSilently(exitNothing)
	case ctx.Err() != nil:
		return failWith(exitUnknown, "interrupted: the checks are not complete")
	case report.IsInterrupted():
		return failWith(exitUnknown, "the checks are not complete: the table says why")
	}
	return nil
}

// newService returns the service as the flags describe it.
func (c *probeCommand) newService(a *app) (probe.Service, error) {
	address, err := url.Parse(c.URL)
	if err == nil && (address.Scheme != "http" && address.Scheme != "https" || address.Host == "") {
		err = errors.New("want an address like http://localhost:8080/payments")
	}
	if err == nil && address.User != nil {
		return probe.Service{}, errors.New("the address has a password: want --header 'Authorization: ...' instead")
	}
	if err != nil {
		return probe.Service{}, fmt.Errorf("%s: %w", c.URL, err)
	}
	header, err := parseFields("--header", c.Header)
	stranger, strangerErr := parseFields("--stranger-header", c.StrangerHeader)
	faults := []error{err, strangerErr}
	route := probedRoute{method: c.Method, target: address.RequestURI(), header: header}
	build := func(flag, data string) func(string) *http.Request {
		body, err := readData(data)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", flag, err))
		}
		return route.withBody(body)
	}
	buildUnlessEmpty := func(flag, data string) func(string) *http.Request {
		if data == "" {
			return nil
		}
		return build(flag, data)
	}
	service := probe.Service{
		URLs:    append([]string{address.Scheme + "://" + address.Host}, c.Instance...),
		Request: build("--data", c.Data),
		Other:   buildUnlessEmpty("--other-data", c.OtherData), Invalid: buildUnlessEmpty("--invalid-data", c.InvalidData),
		Failing: buildUnlessEmpty("--failing-data", c.FailingData), Slow: buildUnlessEmpty("--slow-data", c.SlowData),
		Stream: buildUnlessEmpty("--stream-data", c.StreamData),
		Deaths: c.Deaths, Bound: c.Bound, Header: c.KeyHeader, Varies: c.Varies, Decided: c.Decided, Only: c.Only, Skip: c.Skip,
		Timeout: a.flags.Timeout, MaxRequests: c.MaxRequests,
		TLS: c.newTLS(),
	}
	if c.OtherRoute != "" {
		method, path, ok := strings.Cut(c.OtherRoute, " ")
		if !ok || !strings.HasPrefix(path, "/") {
			faults = append(faults, fmt.Errorf("--other-route: want a method and a path, like 'PUT /payments', and not %q", c.OtherRoute))
		}
		body, _ := readData(c.Data)
		service.OtherRoute = probedRoute{method: method, target: path, header: header}.withBody(body)
	}
	if len(stranger) > 0 {
		service.As = func(r *http.Request, user string) {
			if user == probe.Stranger {
				for name, values := range stranger {
					r.Header[name] = values
				}
			}
		}
	}
	if c.Effects != "" {
		service.Effects = func(ctx context.Context) (int, error) { return countEffects(ctx, c.Effects) }
	}
	return service, errors.Join(faults...)
}

func (c *probeCommand) newTLS() *tls.Config { return &tls.Config{InsecureSkipVerify: c.Insecure} }

// probedRoute is a route of the service.
type probedRoute struct {
	method, target string
	header         http.Header
}

// withBody returns a function that makes requests with body.
func (r probedRoute) withBody(body []byte) func(key string) *http.Request {
	return func(key string) *http.Request {
		made, err := http.NewRequest(r.method, r.target, bytes.NewReader(bytes.ReplaceAll(body, []byte("{{key}}"), []byte(key))))
		if err != nil {
			return nil
		}
		made.Header = r.header.Clone()
		if len(body) > 0 && made.Header.Get("Content-Type") == "" {
			made.Header.Set("Content-Type", detectType(body))
		}
		return made
	}
}

// detectType returns the media type of a body that the user has not named.
func detectType(body []byte) string {
	text := bytes.TrimLeft(body, " \r\n\t")
	if bytes.HasPrefix(text, []byte("{")) || bytes.HasPrefix(text, []byte("[")) {
		return "application/json"
	}
	return "application/x-www-form-urlencoded"
}

// parseFields parses header fields as curl has them: "Name: value".
func parseFields(flag string, fields []string) (http.Header, error) {
	header := make(http.Header)
	for _, field := range fields {
		name, value, ok := strings.Cut(field, ":")
		if !ok || strings.TrimSpace(name) == "" {
			return nil, fmt.Errorf("%s: want 'Name: value', and not %q", flag, field)
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	return header, nil
}

// readData returns the body that a flag names: a text, or @FILE.
func readData(data string) ([]byte, error) {
	if path, ok := strings.CutPrefix(data, "@"); ok {
		return os.ReadFile(path)
	}
	return []byte(data), nil
}

// countEffects runs command in a shell, and returns the number that it prints.
func countEffects(ctx context.Context, command string) (int, error) {
	var complaints bytes.Buffer
	shell := exec.CommandContext(ctx, "sh", "-c", command)
	shell.Stderr = &complaints
	shell.WaitDelay = time.Second // for children that keep the output open
	output, err := shell.Output()
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaints.String()))
	}
	count, err := strconv.Atoi(strings.TrimSpace(string(output)))
	if err != nil {
		return 0, fmt.Errorf("want a number, and not %q", strings.TrimSpace(string(output)))
	}
	return count, nil
}

// requireNear refuses addresses that are neither loopback nor private, because the checks would be an attack on a service of
// somebody else.
func (c *probeCommand) requireNear(ctx context.Context, addresses []string) error {
	if c.Remote {
		return nil
	}
	for _, text := range addresses {
		address, err := url.Parse(text)
		if err != nil {
			return failWith(exitUsage, "%s: %w", text, err)
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", address.Hostname())
		if err != nil {
			return failWith(exitUnknown, "%s: %w", text, err)
		}
		for _, ip := range found {
			if !ip.Unmap().IsLoopback() && !ip.Unmap().IsPrivate() {
				return failWith(exitRefused, "%s is %s, which is neither loopback nor private: use --remote if the service is yours", text, ip)
			}
		}
	}
	return nil
}

// progress shows on a terminal which check is being made.
type progress struct {
	app     *app
	isShown bool
}

func (a *app) newProgress() *progress {
	return &progress{app: a, isShown: !a.flags.JSON && bool(a.style) && a.outIsTerminal}
}

// observe prints the check that is being made, and overwrites it when it is made.
func (p *progress) observe(event probe.Event) {
	if !p.isShown {
		return
	}
	line := event.Check.Name
	if event.Total > 0 {
		line += fmt.Sprintf(" %d/%d", event.Done, event.Total)
	}
	if event.Result != nil {
		line = ""
	}
	fmt.Fprint(p.app.stderr, clearLine+line)
}

var statusColours = map[probe.Status]string{
	probe.Passed: green, probe.Failed: red, probe.PartlyMade: yellow, probe.NotMade: yellow, probe.Skipped: plain,
}

// flagNames replaces the fields of probe.Service by the flags of the command.
var flagNames = strings.NewReplacer(
	"Service.OtherRoute", "--other-route", "Service.Other", "--other-data", "Service.URLs[1]", "--instance", "Service.As",
	"--stranger-header", "Service.Invalid", "--invalid-data", "Service.Failing", "--failing-data", "Service.Slow", "--slow-data",
	"Service.Stream", "--stream-data", "Service.Kill", "--start", "Service.Start", "--start", "Service.Effects", "--effects",
	"Service.Decided", "--decided", "Service.Request", "--data", "Service.Only", "--only", "Service.Skip", "--skip",
	"Service.MaxRequests", "--max-requests", "Service.Bound", "--bound", "Service.URLs", "--instance",
)

// showReport prints a table of the checks, the decisions, and the exchanges of failures.
func (c *probeCommand) showReport(a *app, report *probe.Report) {
	table := newTable(a.out)
	for _, result := range report.Results {
		detail := result.Detail
		if detail == "" && result.Name != "told" {
			detail = strings.Join(result.Notes, "; ")
		}
		if result.Status == probe.Skipped && c.Skip[result.Name] == "" {
			continue // because of --only
		}
		status := a.style.colourText(statusColours[result.Status], string(result.Status))
		table.writeRow(result.Name, status, visible.Text(flagNames.Replace(detail)))
	}
	table.flush()
	decisions := uniqueDecisions(report)
	if len(decisions) > 0 {
		fmt.Fprintln(a.out, "\nDecisions of the service:")
	}
	table = newTable(a.out)
	for _, decision := range decisions {
		table.writeRow("  "+decision.Name, visible.Text(decision.Value))
	}
	table.flush()
	for _, result := range report.Results {
		if result.Name == "told" && len(result.Notes) > 0 {
			fmt.Fprintln(a.out, "\nWhat clients are told:")
			for _, note := range result.Notes {
				fmt.Fprintln(a.out, "  "+visible.Text(note))
			}
		}
		if result.Status == probe.Failed {
			fmt.Fprintf(a.out, "\n%s\n", flagNames.Replace(result.Explain()))
		}
	}
	fmt.Fprintln(a.out)
	for _, status := range []probe.Status{probe.Passed, probe.Failed, probe.PartlyMade, probe.NotMade, probe.Skipped} {
		fmt.Fprintf(a.out, "%d %s, ", report.Count(status), status)
	}
	fmt.Fprintf(a.out, "%d requests\n", report.Requests)
}

// uniqueDecisions returns the decisions of report, each of them once.
func uniqueDecisions(report *probe.Report) []probe.Decision {
	var unique []probe.Decision
	isSeen := make(map[probe.Decision]bool)
	for _, decision := range report.Decisions() {
		if !isSeen[decision] {
			unique = append(unique, decision)
			isSeen[decision] = true
		}
	}
	return unique
}
