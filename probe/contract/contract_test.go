package contract_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/probe/contract"
)

// startService serves the paths of testdata/openapi.yaml.
func startService(t *testing.T) string {
	t.Helper()
	newMiddleware := func(opts idempotency.Options) *idempotency.Middleware {
		idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser, opts)
		require.NoError(t, err)
		return idem
	}
	required, optional := newMiddleware(idempotency.Options{Required: true}), newMiddleware(idempotency.Options{})
	executed := 0 // the probe sends one request after the other
	create := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		executed++
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%d %s %s", executed, r.URL.Path, body)
	})
	mux := http.NewServeMux()
	mux.Handle("POST /v1/payments", required.Handler(create))
	mux.Handle("POST /v1/payments/{id}/refunds", optional.Handler(create))
	mux.Handle("POST /v1/unguarded", create)
	mux.Handle("POST /v1/strict", required.Handler(create))
	mux.Handle("POST /v1/lax", optional.Handler(create))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/v1"
}

func TestDescriptionAndServiceAreCompared(t *testing.T) {
	tests := []struct {
		operation string
		keyUse    contract.KeyUse
		isAsked   bool
		notAsked  string
		findings  []string
	}{
		{operation: "POST /payments", keyUse: contract.KeyRequired, isAsked: true},
		{operation: "POST /payments/{id}/refunds", keyUse: contract.KeyOptional, isAsked: true},
		{operation: "POST /search", keyUse: contract.KeyUndeclared},
		{operation: "POST /forgotten", keyUse: contract.KeyUndeclared, findings: []string{"declares no Idempotency-Key, and is no exception"}},
		{operation: "POST /unguarded", keyUse: contract.KeyRequired, isAsked: true, findings: []string{
			"replay: failed: the retry got another body", "the service executes a request without one"}},
		{operation: "POST /strict", keyUse: contract.KeyOptional, isAsked: true, findings: []string{
			"the exception is not needed", "the service refuses a request without one with 400",
			"does not document 400", "does not document 409"}},
		{operation: "POST /lax", keyUse: contract.KeyRequired, isAsked: true, findings: []string{
			"documents no refusal", "documents no 400", "the service executes a request without one", "does not document 409"}},
		{operation: "PATCH /payments/{id}", keyUse: contract.KeyOptional, notAsked: "the description has no example for the parameter id"},
		{operation: "POST /missing", keyUse: contract.KeyOptional, notAsked: "404 Not Found"},
	}
	report, err := contract.Check(t.Context(), "testdata/openapi.yaml", contract.Options{
		URL: startService(t),
		Exceptions: map[string]string{"POST /search": "only reads", "POST /strict": "an old reason",
			"POST /gone": "removed last year"},
	})
	require.NoError(t, err)
	assert.True(t, report.HasFindings())
	assert.Equal(t, []string{`the exception "POST /gone" names no operation`}, report.Findings)
	found := make(map[string]contract.Operation)
	for _, operation := range report.Operations {
		found[operation.Name] = operation
	}
	assert.Len(t, found, len(tests), "PUT and GET need no key")
	for _, test := range tests {
		t.Run(test.operation, func(t *testing.T) {
			operation := found[test.operation]
			assert.Equal(t, test.keyUse, operation.KeyUse)
			assert.Equal(t, test.isAsked, operation.IsAsked, operation.NotAsked)
			assert.Contains(t, operation.NotAsked, test.notAsked)
			assert.Len(t, operation.Findings, len(test.findings), "%q", operation.Findings)
			for _, finding := range test.findings {
				assert.Contains(t, strings.Join(operation.Findings, "\n"), finding)
			}
		})
	}
}

func TestDescriptionIsReadAlone(t *testing.T) {
	report, err := contract.Check(t.Context(), "testdata/openapi.yaml", contract.Options{Methods: []string{http.MethodPut}})
	require.NoError(t, err)
	require.Len(t, report.Operations, 1)
	assert.Equal(t, "PUT /payments/{id}", report.Operations[0].Name)
	assert.False(t, report.Operations[0].IsAsked)

	_, err = contract.Check(t.Context(), "testdata/none.yaml", contract.Options{})
	assert.ErrorContains(t, err, "idempotency: the description cannot be read")
}

func TestExceptionsHaveReasons(t *testing.T) {
	exceptions, err := contract.ReadExceptions(strings.NewReader("# reviewed\n\nPOST /search: only reads\nPOST /login: a token: no effect\n"))
	require.NoError(t, err)
	assert.Equal(t, map[string]string{"POST /search": "only reads", "POST /login": "a token: no effect"}, exceptions)
	for _, text := range []string{"POST /search", "POST /search:", "POST /search:  "} {
		_, err = contract.ReadExceptions(strings.NewReader("\n" + text))
		assert.ErrorContains(t, err, "line 2 of the exceptions has no reason", text)
	}
}

func TestExamplePasses(t *testing.T) {
	contract.Test(t, filepath.Join("..", "..", "docs", "openapi.yaml"), contract.Options{})
}

// TestPageHasTheComponents shows that docs/openapi.yaml is what Components writes.
func TestPageHasTheComponents(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "openapi.yaml"))
	require.NoError(t, err)
	written, err := contract.Components(idempotency.Options{Required: true})
	require.NoError(t, err)
	_, components, ok := strings.Cut(string(page), "\ncomponents:\n")
	require.True(t, ok)
	assert.Equal(t, "components:\n"+components, string(written))
}

func TestComponentsFollowTheOptions(t *testing.T) {
	written, err := contract.Components(idempotency.Options{
		Headers: []string{"Idempotency-Key", "X-Request-Id"}, Required: true, ReuseStatus: http.StatusUnprocessableEntity,
		ProblemBase: "https://shop.example/problems/", TTL: 7 * 24 * time.Hour,
	})
	require.NoError(t, err)
	document, err := openapi3.NewLoader().LoadFromData([]byte("openapi: 3.1.0\ninfo: {title: t, version: '1'}\npaths: {}\n" + string(written)))
	require.NoError(t, err)
	require.NoError(t, document.Validate(t.Context()))
	parameters := document.Components.Parameters
	assert.Len(t, parameters, 2)
	assert.Equal(t, "X-Request-Id", parameters["XRequestId"].Value.Name)
	assert.False(t, parameters["IdempotencyKey"].Value.Required, "a client sends one of two")
	assert.Contains(t, parameters["IdempotencyKey"].Value.Description, "kept for 7 days")
	assert.Contains(t, document.Components.Responses, "IdempotencyKeyReused")
	assert.NotContains(t, string(written), "idempotency-go.github.io")
	assert.Equal(t, 1, strings.Count(string(written), "https://shop.example/problems/key-reused"))
}

// TestComponentsDescribeKeyInfo compares the components for Options.KeyInfo with the answers of a middleware.
func TestComponentsDescribeKeyInfo(t *testing.T) {
	info := idempotency.KeyInfo{StatusURL: "/payments/status", BeganField: "X-Began", KeptUntilField: "X-Kept-Until"}
	written, err := contract.Components(idempotency.Options{KeyInfo: info})
	require.NoError(t, err)
	whole := "openapi: 3.1.0\ninfo: {title: t, version: '1'}\npaths: {}\n" + string(written)
	document, err := openapi3.NewLoader().LoadFromData([]byte(whole))
	require.NoError(t, err)
	require.NoError(t, document.Validate(t.Context()))
	assert.Contains(t, document.Components.Headers, "IdempotencyBegan")
	assert.Contains(t, document.Components.Headers, "IdempotencyKeptUntil")

	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{KeyInfo: info})
	require.NoError(t, err)
	guarded := idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "secret" {
			idempotency.Decide(r.Context(), idempotency.Tombstone)
		}
		_, _ = w.Write([]byte("paid"))
	}))
	answer := func(handler http.Handler, method, target, key string) (decoded any) {
		r := httptest.NewRequest(method, target, nil)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if strings.HasSuffix(w.Header().Get("Content-Type"), "json") {
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &decoded))
		}
		return decoded
	}
	for _, key := range []string{"unused", "key", "secret"} {
		if key != "unused" {
			answer(guarded, http.MethodPost, "/payments", key)
		}
		status := answer(idem.Status(), http.MethodGet, "/?method=POST&path=/payments&answer=true", key)
		require.NoError(t, document.Components.Schemas["IdempotencyStatus"].Value.VisitJSON(status))
	}
	refusal := answer(guarded, http.MethodPost, "/payments", "secret")
	require.NoError(t, document.Components.Schemas["IdempotencyProblem"].Value.VisitJSON(refusal))
	require.Contains(t, refusal, "statusUrl")
	refused := map[string]any{"state": "lost", "instance": "urn:uuid:1"}
	require.Error(t, document.Components.Schemas["IdempotencyStatus"].Value.VisitJSON(refused))
}
