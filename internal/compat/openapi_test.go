package compat_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

const problemBase = "https://github.com/idempotency-go/idempotency#"

// openAPI returns docs/openapi.yaml, which must be valid.
func openAPI(t *testing.T) (*v3.Document, validator.Validator) {
	t.Helper()
	text, err := os.ReadFile("../../docs/openapi.yaml")
	require.NoError(t, err)
	document, err := libopenapi.NewDocument(text)
	require.NoError(t, err)
	check, errs := validator.NewValidator(document)
	require.Empty(t, errs)
	valid, faults := check.ValidateDocument()
	require.True(t, valid, "%v", faults)
	model, err := document.BuildV3Model()
	require.NoError(t, err)
	return &model.Model, check
}

// The description has every problem that the library answers, under its status.
func TestOpenAPIHasEveryProblem(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../../errors.go")
	require.NoError(t, err)
	made := regexp.MustCompile(`Status: http\.Status(\w+), Code: "(.*?)"`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, made)
	want := map[string]bool{"InternalServerError rolled-back": true} // made in outer.go and internal/sqlstore
	for _, problem := range made {
		want[problem[1]+" "+problem[2]] = true
	}

	model, _ := openAPI(t)
	got := map[string]bool{}
	for status, response := range model.Paths.PathItems.GetOrZero("/payments").Post.Responses.Codes.FromOldest() {
		for kind, content := range response.Content.FromOldest() {
			if kind != "application/problem+json" {
				continue
			}
			for _, name := range content.Schema.Schema().AllOf[1].Schema().Properties.GetOrZero("type").Schema().Enum {
				got[statusName(t, status)+" "+strings.TrimPrefix(name.Value, problemBase)] = true
			}
		}
	}
	require.Equal(t, want, got)
}

// statusName returns the name of a status code in net/http, without its prefix.
func statusName(t *testing.T, code string) string {
	t.Helper()
	names := map[string]string{
		"400": "BadRequest", "401": "Unauthorized", "403": "Forbidden", "409": "Conflict", "413": "RequestEntityTooLarge",
		"429": "TooManyRequests", "500": "InternalServerError", "503": "ServiceUnavailable",
	}
	require.Contains(t, names, code)
	return names[code]
}

// The pattern of the key accepts what the library accepts.
func TestOpenAPIDescribesTheKey(t *testing.T) {
	t.Parallel()
	model, _ := openAPI(t)
	schema := model.Components.Parameters.GetOrZero("IdempotencyKey").Schema.Schema()
	pattern := regexp.MustCompile(schema.Pattern)

	long, escaped := strings.Repeat("a", 255), strings.Repeat(`\"`, 255)
	values := []string{long, long + "a", `"` + long + `"`, `"` + long + `a"`, `"` + escaped + `"`, `"` + escaped + `a"`, ""}
	for c := byte(0); c < 0x80; c++ {
		values = append(values, string(c), "a"+string(c)+"b", `"`+string(c)+`"`, `"a\`+string(c)+`"`)
	}
	for _, value := range values {
		_, err := idempotency.ParseKey([]string{value})
		fits := int64(len(value)) <= *schema.MaxLength && int64(len(value)) >= *schema.MinLength
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

// send returns the answer of the service, which must be as the description says.
func (p *payments) send(t *testing.T, check validator.Validator, key, body string) *http.Response {
	t.Helper()
	r := p.request(t, key, body)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)

	resp.Body = io.NopCloser(bytes.NewReader(text))
	valid, faults := check.ValidateHttpResponse(r, resp)
	require.True(t, valid, "%s %s: %v", resp.Status, text, faults)
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
		p.handler = pay
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

func pay(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, `{"id":"7","amount":4200}`)
}

const payment = `{"amount":4200}`

func TestOpenAPIDescribesAnswers(t *testing.T) {
	t.Parallel()
	_, check := openAPI(t)
	p := &payments{}
	p.start(t)
	for _, replayed := range []string{"", "true"} {
		resp := p.send(t, check, "key", payment)
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		require.Equal(t, replayed, resp.Header.Get(marker))
	}
	valid, faults := check.ValidateHttpRequest(p.request(t, "key", payment))
	require.True(t, valid, "%v", faults)
	valid, _ = check.ValidateHttpRequest(p.request(t, "", payment))
	require.False(t, valid, "the key is required")
}

// An answer that is not as described is noticed, or the other tests would show nothing.
func TestOpenAPIRefusesOtherAnswers(t *testing.T) {
	t.Parallel()
	_, check := openAPI(t)
	for _, body := range []string{
		`{}`, `{"type":"` + problemBase + `in-progress","title":"","status":409,"detail":"","retry":"later"}`,
		`{"type":"` + problemBase + `overloaded","title":"","status":409,"detail":"","retry":"never"}`,
		`{"type":"` + problemBase + `in-progress","title":"","status":"409","detail":"","retry":"never"}`,
	} {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(payment))
		resp := &http.Response{
			StatusCode: http.StatusConflict, Body: io.NopCloser(strings.NewReader(body)), Request: r,
			Header: http.Header{"Content-Type": {"application/problem+json"}},
		}
		valid, _ := check.ValidateHttpResponse(r, resp)
		require.False(t, valid, body)
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
		pay(w, r)
	}
}

func TestOpenAPIDescribesRefusals(t *testing.T) {
	t.Parallel()
	_, check := openAPI(t)
	for code, tested := range map[string]struct {
		payments
		keys, bodies []string // of the requests; the last one is refused
		lapses       bool     // the lease lapses before the last request
	}{
		"key-missing":  {payments: payments{opts: idempotency.Options{Required: true}}, keys: []string{""}},
		"key-invalid":  {keys: []string{"a b"}},
		"body-invalid": {payments: payments{opts: idempotency.Options{Fingerprint: idempotency.FingerprintJSON}}, bodies: []string{`{`}},
		"user-unknown": {payments: payments{user: func(*http.Request) (string, error) { return "", nil }}},
		"replay-refused": {
			payments: payments{opts: idempotency.Options{Replay: func(*http.Request, *idempotency.Response) error {
				return errors.New("no rights any more")
			}}},
			keys: []string{"key", "key"},
		},
		"key-reused":     {keys: []string{"key", "key"}, bodies: []string{payment, `{"amount":1}`}},
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
				body := payment
				if i < len(tested.bodies) {
					body = tested.bodies[i]
				}
				resp = tested.send(t, check, key, body)
			}
			if tested.lapses {
				eventually(t, func() bool {
					resp = tested.send(t, check, tested.keys[0], payment)
					return resp.Header.Get("Retry-After") == ""
				}, "the lease lapses")
			}
			requireCode(t, resp, code)
		})
	}
}

// A request is refused while another one with its key runs, or while another one takes all memory for bodies.
func TestOpenAPIDescribesRefusalsMeanwhile(t *testing.T) {
	t.Parallel()
	_, check := openAPI(t)
	for code, key := range map[string]string{"in-progress": "first", "overloaded": "second"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			size := int64(len(payment))
			p := &payments{opts: idempotency.Options{MaxBody: size}}
			if code == "overloaded" {
				p.opts.MaxBodies = size
			}
			refused := make(chan *http.Response, 1)
			p.handler = func(w http.ResponseWriter, r *http.Request) {
				refused <- p.send(t, check, key, payment)
				pay(w, r)
			}
			p.start(t)
			require.Equal(t, http.StatusCreated, p.send(t, check, "first", payment).StatusCode)
			requireCode(t, receive(t, refused), code)
		})
	}
}

// A user who goes on sending new keys is refused at last.
func TestOpenAPIDescribesTheQuota(t *testing.T) {
	t.Parallel()
	_, check := openAPI(t)
	p := &payments{store: idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxUserBytes: 8 << 10})}
	p.start(t)
	for n := range 100 {
		resp := p.send(t, check, strconv.Itoa(n), payment)
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
