package compat_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint"
)

const problemBase = "https://idempotency-go.github.io/idempotency/problems#"

// description is docs/openapi.yaml.
type description struct {
	*openapi3.T
	router routers.Router
}

// openAPI returns the description, which must be valid.
func openAPI(t *testing.T) description {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromFile("../../docs/openapi.yaml")
	require.NoError(t, err)
	require.NoError(t, document.Validate(t.Context()))
	router, err := legacy.NewRouter(document)
	require.NoError(t, err)
	return description{document, router}
}

// request returns an error if a request violates the description.
func (d description) request(r *http.Request) error {
	input, err := d.input(r)
	if err != nil {
		return err
	}
	return openapi3filter.ValidateRequest(r.Context(), input)
}

// answer returns an error if the answer to a request violates the description.
func (d description) answer(r *http.Request, resp *http.Response) error {
	input, err := d.input(r)
	if err != nil {
		return err
	}
	return openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: input, Status: resp.StatusCode, Header: resp.Header, Body: resp.Body,
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
}

func (d description) input(r *http.Request) (*openapi3filter.RequestValidationInput, error) {
	local := r.Clone(r.Context())
	local.URL = &url.URL{Path: r.URL.Path}
	route, params, err := d.router.FindRoute(local)
	return &openapi3filter.RequestValidationInput{Request: r, PathParams: params, Route: route}, err
}

// The description has every problem of the library, with the same status.
func TestOpenAPIHasEveryProblem(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../errors.go")
	require.NoError(t, err)
	made := regexp.MustCompile(`Status: http\.Status(\w+), Code: "(.*?)"`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, made)
	want := map[string]bool{}
	for _, problem := range made {
		want[problem[1]+" "+problem[2]] = true
	}

	got := map[string]bool{}
	for status, response := range openAPI(t).Paths.Value("/payments").Post.Responses.Map() {
		content := response.Value.Content["application/problem+json"]
		if content == nil {
			continue
		}
		for _, name := range content.Schema.Value.AllOf[1].Value.Properties["type"].Value.Enum {
			got[statusName(t, status)+" "+strings.TrimPrefix(name.(string), problemBase)] = true
		}
	}
	require.Equal(t, want, got)
}

// statusName returns the name of a status constant in net/http, without the prefix.
func statusName(t *testing.T, code string) string {
	t.Helper()
	names := map[string]string{
		"400": "BadRequest", "401": "Unauthorized", "403": "Forbidden", "409": "Conflict", "413": "RequestEntityTooLarge",
		"429": "TooManyRequests", "500": "InternalServerError", "503": "ServiceUnavailable",
	}
	require.Contains(t, names, code)
	return names[code]
}

// The description's pattern for keys accepts the same keys as the library.
func TestOpenAPIDescribesTheKey(t *testing.T) {
	t.Parallel()
	schema := openAPI(t).Components.Parameters["IdempotencyKey"].Value.Schema.Value
	pattern := regexp.MustCompile(schema.Pattern)

	long, escaped := strings.Repeat("a", 255), strings.Repeat(`\"`, 255)
	values := []string{long, long + "a", `"` + long + `"`, `"` + long + `a"`, `"` + escaped + `"`, `"` + escaped + `a"`, ""}
	for c := byte(0); c < 0x80; c++ {
		values = append(values, string(c), "a"+string(c)+"b", `"`+string(c)+`"`, `"a\`+string(c)+`"`)
	}
	for _, value := range values {
		_, err := idempotency.ParseKey([]string{value})
		fits := uint64(len(value)) <= *schema.MaxLength && uint64(len(value)) >= schema.MinLength
		require.Equal(t, err == nil, fits && pattern.MatchString(value), "%q", value)
	}
}

// payments is a service whose answers are checked against the description.
type payments struct {
	opts    idempotency.Options
	store   idempotency.Store
	user    idempotency.UserFunc
	outer   func(http.Handler) http.Handler
	handler http.HandlerFunc
	url     string
}

// send returns the answer of the service, and requires that the answer matches the description.
func (p *payments) send(t *testing.T, check description, key, body string) *http.Response {
	t.Helper()
	r := p.request(t, key, body)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)

	resp.Body = io.NopCloser(bytes.NewReader(text))
	require.NoError(t, check.answer(r, resp), "%s %s", resp.Status, text)
	resp.Body = io.NopCloser(bytes.NewReader(text))
	return resp
}

func (p *payments) request(t *testing.T, key, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/payments", strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r
}

func (p *payments) start(t *testing.T) {
	t.Helper()
	if p.store == nil {
		p.store = newStore()
	}
	if p.user == nil {
		p.user = func(*http.Request) (string, error) { return "alice", nil }
	}
	if p.handler == nil {
		p.handler = acceptPayment
	}
	p.opts.Logger = slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(p.store, p.user, p.opts)
	require.NoError(t, err)
	service := idem.Handler(p.handler)
	if p.outer != nil {
		service = p.outer(service)
	}
	server := httptest.NewServer(service)
	t.Cleanup(server.Close)
	p.url = server.URL
}

func acceptPayment(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, `{"id":"7","amount":4200}`)
}

const validPayment = `{"amount":4200}`

func TestOpenAPIDescribesAnswers(t *testing.T) {
	t.Parallel()
	check := openAPI(t)
	p := &payments{}
	p.start(t)
	for _, replayed := range []string{"", "true"} {
		resp := p.send(t, check, "key", validPayment)
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, replayed, resp.Header.Get(marker))
	}
	require.NoError(t, check.request(p.request(t, "key", validPayment)))
	require.Error(t, check.request(p.request(t, "", validPayment)), "the key is required")
}

// The check notices an answer that violates the description; otherwise the other tests would show nothing.
func TestOpenAPIRefusesOtherAnswers(t *testing.T) {
	t.Parallel()
	check := openAPI(t)
	for _, body := range []string{
		`{}`, `{"type":"` + problemBase + `in-progress","title":"","status":409,"detail":"","retry":"later"}`,
		`{"type":"` + problemBase + `overloaded","title":"","status":409,"detail":"","retry":"never"}`,
		`{"type":"` + problemBase + `in-progress","title":"","status":"409","detail":"","retry":"never"}`,
	} {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(validPayment))
		resp := &http.Response{
			StatusCode: http.StatusConflict, Body: io.NopCloser(strings.NewReader(body)), Request: r,
			Header: http.Header{"Content-Type": {"application/problem+json"}},
		}
		require.Error(t, check.answer(r, resp), body)
	}
}

// down is a store that does not answer.
type down struct{ idempotency.Store }

func (down) Begin(context.Context, idempotency.Key, idempotency.ClaimRequest) (idempotency.Record, idempotency.Claim, error) {
	return idempotency.Record{}, nil, errors.New("the store is down")
}

func decide(v idempotency.Verdict) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		idempotency.Decide(r.Context(), v)
		acceptPayment(w, r)
	}
}

func TestOpenAPIDescribesRefusals(t *testing.T) {
	t.Parallel()
	check := openAPI(t)
	for code, tested := range map[string]struct {
		payments
		keys, bodies []string // of the requests; the last request is refused
		lapses       bool     // the lease lapses before the last request
	}{
		"key-missing":  {payments: payments{opts: idempotency.Options{Required: true}}, keys: []string{""}},
		"key-invalid":  {keys: []string{"a b"}},
		"body-invalid": {payments: payments{opts: idempotency.Options{Fingerprint: fingerprint.JSON}}, bodies: []string{`{`}},
		"user-unknown": {payments: payments{user: func(*http.Request) (string, error) { return "", nil }}},
		"replay-refused": {
			payments: payments{opts: idempotency.Options{Replay: func(*http.Request, *idempotency.Response) error {
				return errors.New("no rights any more")
			}}},
			keys: []string{"key", "key"},
		},
		"key-reused":     {keys: []string{"key", "key"}, bodies: []string{validPayment, `{"amount":1}`}},
		"not-replayable": {payments: payments{handler: decide(idempotency.Tombstone)}, keys: []string{"key", "key"}},
		"outcome-unknown": {
			payments: payments{
				opts:    idempotency.Options{Abandoned: idempotency.Refuse, Lease: 50 * time.Millisecond},
				handler: decide(idempotency.Unknown),
			},
			keys: []string{"key", "key"}, lapses: true,
		},
		"body-too-large": {payments: payments{opts: idempotency.Options{MaxBody: 3}}},
		"body-consumed": {payments: payments{outer: func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				next.ServeHTTP(w, r)
			})
		}}},
		"store-unavailable": {payments: payments{store: down{}}},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			tested.start(t)
			if tested.keys == nil {
				tested.keys = []string{"key"}
			}
			var resp *http.Response
			for i, key := range tested.keys {
				body := validPayment
				if i < len(tested.bodies) {
					body = tested.bodies[i]
				}
				resp = tested.send(t, check, key, body)
			}
			if tested.lapses {
				eventually(t, func() bool {
					resp = tested.send(t, check, tested.keys[0], validPayment)
					return resp.StatusCode == http.StatusConflict && resp.Header.Get("Retry-After") == ""
				}, "the lease lapses")
			}
			requireCode(t, resp, code)
		})
	}
}

// A request is refused while another request with its key runs, or while another request occupies all memory for
// bodies.
func TestOpenAPIDescribesRefusalsMeanwhile(t *testing.T) {
	t.Parallel()
	check := openAPI(t)
	for code, key := range map[string]string{"in-progress": "first", "overloaded": "second"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			size := int64(len(validPayment))
			p := &payments{opts: idempotency.Options{MaxBody: size}}
			if code == "overloaded" {
				p.opts.MaxBodies = 512 // the smallest buffer
			}
			refused := make(chan *http.Response, 1)
			p.handler = func(w http.ResponseWriter, r *http.Request) {
				refused <- p.send(t, check, key, validPayment)
				acceptPayment(w, r)
			}
			p.start(t)
			require.Equal(t, http.StatusCreated, p.send(t, check, "first", validPayment).StatusCode)
			requireCode(t, receive(t, refused), code)
		})
	}
}

// A user who keeps sending new keys is finally refused.
func TestOpenAPIDescribesTheQuota(t *testing.T) {
	t.Parallel()
	check := openAPI(t)
	p := &payments{store: idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 8 << 10})}
	p.start(t)
	for n := range 100 {
		resp := p.send(t, check, strconv.Itoa(n), validPayment)
		if resp.StatusCode != http.StatusCreated {
			requireCode(t, resp, "quota-exceeded")
			return
		}
	}
	require.FailNow(t, "no request was refused")
}

func requireCode(t *testing.T, resp *http.Response, code string) {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, string(body), `"type":"`+problemBase+code+`"`)
	waits := []string{"in-progress", "overloaded", "quota-exceeded", "store-unavailable"}
	require.Equal(t, slices.Contains(waits, code), resp.Header.Get("Retry-After") != "")
}
