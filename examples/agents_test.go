package examples_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/examples/agents"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

// published is a directory with clones of the repositories of ACP and AdCP. With the flag, the tests validate refusals with the
// schemas of these clones, and otherwise with the schemas in this file.
var published = flag.String("published", "", "directory with clones of the repositories of ACP and AdCP, named acp and adcp")

// protocol is one protocol of agents, with a service that speaks the protocol.
type protocol struct {
	serve      func(t *testing.T, shop *agentShop) http.Handler
	options    idempotency.Options
	errorCode  func(answer map[string]any) any // in a refusal
	schema     string                          // of refusals, in the words of this test
	schemaFile string                          // of refusals, in a clone; empty if the protocol has no schema
}

var protocols = map[string]protocol{
	"ACP": {
		serve: func(t *testing.T, shop *agentShop) http.Handler {
			idem, err := idempotency.New(newAgentStore(), userOfAgent, agents.ACP())
			require.NoError(t, err)
			return agents.EchoKey(idem.Handler(shop))
		},
		options:   agents.ACP(),
		errorCode: func(answer map[string]any) any { return answer["code"] },
		schema: `{"type": "object", "required": ["type", "code", "message"], "additionalProperties": false, "properties": {
			"type": {"enum": ["invalid_request", "processing_error", "service_unavailable"]},
			"code": {"type": "string"}, "message": {"type": "string"}}}`,
		schemaFile: "acp/spec/2026-04-17/json-schema/schema.agentic_checkout.json#/$defs/Error",
	},
	"UCP": {
		serve: func(t *testing.T, shop *agentShop) http.Handler {
			idem, err := idempotency.New(newAgentStore(), userOfAgent, agents.UCP())
			require.NoError(t, err)
			return idem.Handler(shop)
		},
		options:   agents.UCP(),
		errorCode: func(answer map[string]any) any { return answer["code"] },
		schema: `{"type": "object", "required": ["code", "content"], "properties": {
			"code": {"type": "string"}, "content": {"type": "string"}}}`,
	},
	"AdCP": {
		serve: func(t *testing.T, shop *agentShop) http.Handler {
			idem, err := keyfrom.New(newAgentStore(), userOfAgent, agents.AdCP(), keyfrom.JSON("/idempotency_key"))
			require.NoError(t, err)
			return agents.AddEnvelope(idem.Handler(shop))
		},
		options: agents.AdCP(),
		errorCode: func(answer map[string]any) any {
			failure, _ := answer["adcp_error"].(map[string]any)
			return failure["code"]
		},
		schema: `{"type": "object", "required": ["status"], "properties": {
				"status": {"enum": ["completed", "failed"]}, "replayed": {"type": "boolean"}, "context": {"type": "object"},
				"adcp_error": {"$ref": "#/$defs/error"}},
			"$defs": {"error": {"type": "object", "required": ["code", "message"], "properties": {
				"code": {"type": "string", "minLength": 1, "maxLength": 64}, "message": {"type": "string"},
				"recovery": {"enum": ["transient", "correctable", "terminal"]},
				"retry_after": {"type": "number", "minimum": 1, "maximum": 3600}}}}}`,
		schemaFile: "adcp/static/schemas/source/core/protocol-envelope.json",
	},
}

func newAgentStore() idempotency.Store {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

// userOfAgent returns the agent that a bearer token names.
func userOfAgent(r *http.Request) (string, error) {
	if agent, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return agent, nil
	}
	return "", errors.New("no token")
}

// agentShop is the service behind the middleware. A request whose body contains "slow" waits for mayEnd. A body that contains
// "declined" is answered with 402.
type agentShop struct {
	t             *testing.T
	url           string
	schema        *jsonschema.Schema
	runs          atomic.Int64
	failures      atomic.Int64 // the number of next runs that fail with 500
	slowRunBegins chan struct{}
	mayEnd        chan struct{}
}

func (s *agentShop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	run := s.runs.Add(1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if strings.Contains(string(body), "slow") {
		close(s.slowRunBegins)
		<-s.mayEnd
	}
	status := http.StatusCreated
	switch {
	case s.failures.Add(-1) >= 0:
		status = http.StatusInternalServerError
	case strings.Contains(string(body), "declined"):
		status = http.StatusPaymentRequired
	}
	answer := `{"status": "completed", "id": 9007199254740993, "run": ` + strconv.FormatInt(run, 10) + `}`
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, answer)
}

// startAgentShop starts a service of the protocol.
func startAgentShop(t *testing.T, name string) *agentShop {
	t.Helper()
	shop := &agentShop{
		t: t, slowRunBegins: make(chan struct{}), mayEnd: make(chan struct{}), schema: compileSchema(t, protocols[name]),
	}
	server := httptest.NewServer(protocols[name].serve(t, shop))
	t.Cleanup(server.Close)
	shop.url = server.URL
	return shop
}

// compileSchema returns the schema of refusals.
func compileSchema(t *testing.T, p protocol) *jsonschema.Schema {
	t.Helper()
	if *published == "" || p.schemaFile == "" {
		return mustCompile(t, "test:schema", p.schema)
	}
	return mustCompile(t, p.schemaFile, "")
}

// mustCompile returns the schema with address: text, or a part of a file in the directory of published schemas.
func mustCompile(t *testing.T, address, text string) *jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	if text != "" {
		schema, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		require.NoError(t, err)
		require.NoError(t, compiler.AddResource(address, schema))
	} else {
		root, err := filepath.Abs(*published)
		require.NoError(t, err)
		compiler.UseLoader(publishedLoader(root))
		address = "file://" + root + "/" + address
	}
	schema, err := compiler.Compile(address)
	require.NoError(t, err)
	return schema
}

// publishedLoader loads schemas from a directory. The schemas of AdCP refer to each other as /schemas/….
type publishedLoader string

func (root publishedLoader) Load(address string) (any, error) {
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	file := parsed.Path
	if rest, ok := strings.CutPrefix(file, "/schemas/"); ok {
		file = filepath.Join(string(root), "adcp/static/schemas/source", rest)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(text))
}

// agentRequest is a request of an agent, and what the agent must get.
type agentRequest struct {
	name      string
	method    string // POST by default
	path      string
	key, body string
	status    int
	code      string // of the refusal, or empty
	isReplay  bool
	runs      int64 // of the handler so far
}

// sendAll sends the requests, one at a time.
func (s *agentShop) sendAll(p protocol, requests []agentRequest) {
	for _, request := range requests {
		answer, header := s.send(request)
		require.Equal(s.t, request.isReplay, header.Get("Idempotent-Replayed") == "true", request.name)
		require.Equal(s.t, request.runs, s.runs.Load(), request.name)
		if request.code != "" {
			require.Equal(s.t, request.code, p.errorCode(answer), request.name)
			require.NoError(s.t, s.schema.Validate(answer), request.name)
		}
	}
}

// send sends a request, and requires its status.
func (s *agentShop) send(request agentRequest) (answer map[string]any, header http.Header) {
	s.t.Helper()
	resp, err := http.DefaultClient.Do(s.newRequest(request))
	require.NoError(s.t, err)
	defer resp.Body.Close()
	require.Equal(s.t, request.status, resp.StatusCode, request.name)
	require.Equal(s.t, "application/json", resp.Header.Get("Content-Type"), request.name)
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	require.NoError(s.t, json.Unmarshal(text, &answer), "%s: %s", request.name, text)
	if request.status == http.StatusCreated {
		require.Contains(s.t, string(text), "9007199254740993", request.name) // no float has this value
	}
	return answer, resp.Header
}

func (s *agentShop) newRequest(request agentRequest) *http.Request {
	s.t.Helper()
	method := cmp.Or(request.method, http.MethodPost)
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+request.path, strings.NewReader(request.body))
	require.NoError(s.t, err)
	r.Header = http.Header{"Authorization": {"Bearer alice"}, "Content-Type": {"application/json"}}
	if request.key != "" {
		r.Header.Set("Idempotency-Key", request.key)
	}
	return r
}

// whileRunning sends the request, whose body contains "slow", and calls check while the handler runs. Then the handler ends.
func (s *agentShop) whileRunning(request agentRequest, check func()) {
	s.t.Helper()
	r, ended := s.newRequest(request), make(chan struct{})
	go func() {
		defer close(ended)
		if resp, err := http.DefaultClient.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	defer func() { <-ended }()
	defer close(s.mayEnd)
	select {
	case <-s.slowRunBegins:
		check()
	case <-ended:
		require.Fail(s.t, "the handler has not run")
	}
}

func TestAgentsACP(t *testing.T) {
	t.Parallel()
	shop := startAgentShop(t, "ACP")
	const path = "/checkout_sessions"
	shop.sendAll(protocols["ACP"], []agentRequest{
		{name: "no key", path: path, body: `{}`, status: 400, code: "idempotency_key_required"},
		{name: "first", path: path, key: "k", body: `{"a": 1.0, "b": [1, 2]}`, status: 201, runs: 1},
		{name: "equal JSON", path: path, key: "k", body: `{"b":[1,2],"a":1}`, status: 201, isReplay: true, runs: 1},
		{name: "array", path: path, key: "k", body: `{"a":1,"b":[2,1]}`, status: 422, code: "idempotency_conflict", runs: 1},
		{name: "null", path: path, key: "k", body: `{"a":1,"b":[1,2],"c":null}`, status: 422, code: "idempotency_conflict", runs: 1},
		{name: "another path", path: path + "/1/complete", key: "k", body: `{}`, status: 201, runs: 2},
		{name: "a final answer", path: path, key: "d", body: `"declined"`, status: 402, runs: 3},
		{name: "the same again", path: path, key: "d", body: `"declined"`, status: 402, isReplay: true, runs: 3},
	})
	shop.failures.Store(1)
	shop.sendAll(protocols["ACP"], []agentRequest{
		{name: "failure", path: path, key: "f", body: `{}`, status: 500, runs: 4},
		{name: "fresh request", path: path, key: "f", body: `{}`, status: 201, runs: 5},
	})
	slow := agentRequest{name: "slow", path: path, key: "s", body: `"slow"`}
	shop.whileRunning(slow, func() {
		running := slow
		running.status, running.code, running.runs = 409, "idempotency_in_flight", 6
		shop.sendAll(protocols["ACP"], []agentRequest{running})
		_, header := shop.send(running)
		require.Regexp(t, `^[1-9]\d*$`, header.Get("Retry-After"))
		require.Equal(t, "s", header.Get("Idempotency-Key"))
	})
	slow.status, slow.isReplay, slow.runs = 201, true, 6
	shop.sendAll(protocols["ACP"], []agentRequest{slow})
	_, header := shop.send(slow)
	require.Equal(t, "s", header.Get("Idempotency-Key"))
}

func TestAgentsUCP(t *testing.T) {
	t.Parallel()
	shop := startAgentShop(t, "UCP")
	const path = "/checkout-sessions/1"
	shop.sendAll(protocols["UCP"], []agentRequest{
		{name: "no key", path: path, body: `{}`, status: 400, code: "key_missing"},
		{name: "PUT without a key", method: "PUT", path: path, body: `{}`, status: 400, code: "key_missing"},
		{name: "first", method: "PUT", path: path, key: "k", body: `{"a": 1}`, status: 201, runs: 1},
		{name: "equal bytes", method: "PUT", path: path, key: "k", body: `{"a": 1}`, status: 201, isReplay: true, runs: 1},
		{name: "other bytes", method: "PUT", path: path, key: "k", body: `{"a":1}`, status: 409, code: "key_reused", runs: 1},
		{name: "another operation", path: path + "/complete", key: "k", body: `{"a": 1}`, status: 201, runs: 2},
	})
	shop.failures.Store(1)
	shop.sendAll(protocols["UCP"], []agentRequest{
		{name: "failure", path: path, key: "f", body: `{}`, status: 500, runs: 3},
		{name: "retry", path: path, key: "f", body: `{}`, status: 201, runs: 4},
	})
	slow := agentRequest{name: "slow", path: path, key: "s", body: `"slow"`}
	shop.whileRunning(slow, func() {
		running := slow
		running.status, running.code, running.runs = 503, "in_progress", 5
		shop.sendAll(protocols["UCP"], []agentRequest{running})
		_, header := shop.send(running)
		require.Regexp(t, `^[1-9]\d*$`, header.Get("Retry-After"))
	})
}

func TestAgentsAdCP(t *testing.T) {
	t.Parallel()
	shop := startAgentShop(t, "AdCP")
	const path = "/create_media_buy"
	// body returns a body with the key k and more members.
	body := func(more string) string { return `{"idempotency_key": "k-0123456789abcdef"` + more + `}` }
	push := func(url, credentials string) string {
		return fmt.Sprintf(`, "push_notification_config": {"url": %q, "authentication": {"credentials": %q}}`, url, credentials)
	}
	shop.sendAll(protocols["AdCP"], []agentRequest{
		{name: "no key", path: path, body: `{}`, status: 400, code: "INVALID_REQUEST"},
		{name: "declined", path: path, body: body(`, "budget": "declined"`), status: 402, runs: 1},
		{name: "another budget", path: path, body: body(`, "budget": 1, "context": {"n": 1}` + push("x", "x")), status: 201, runs: 2},
		{name: "equal JSON", path: path, status: 201, isReplay: true, runs: 2,
			body: body(push("x", "y") + `, "context": {"n": 2}, "budget": 1.0, "governance_context": "x"`)},
		{name: "another URL", path: path, body: body(`, "budget": 1` + push("y", "x")),
			status: 409, code: "IDEMPOTENCY_CONFLICT", runs: 2},
		{name: "ext counts", path: path, body: body(`, "budget": 1, "ext": {}` + push("x", "x")),
			status: 409, code: "IDEMPOTENCY_CONFLICT", runs: 2},
		{name: "another task", path: "/sync_creatives", body: body(`, "budget": 1` + push("x", "x")),
			status: 409, code: "IDEMPOTENCY_CONFLICT", runs: 2},
		{name: "another key", path: path, body: `{"idempotency_key": "other"}`, status: 201, runs: 3},
	})
	replayed := agentRequest{path: path, body: body(`, "budget": 1, "context": {"n": 3}` + push("x", "z")), status: 201}
	replay, _ := shop.send(replayed)
	require.NoError(t, shop.schema.Validate(replay))
	require.Equal(t, map[string]any{"n": 3.0}, replay["context"])
	require.Equal(t, true, replay["replayed"])
	first, _ := shop.send(agentRequest{path: path, body: `{"idempotency_key": "fresh"}`, status: 201})
	require.NotContains(t, first, "context")
	require.Equal(t, false, first["replayed"])
	shop.failures.Store(1)
	shop.sendAll(protocols["AdCP"], []agentRequest{
		{name: "failure", path: path, body: `{"idempotency_key": "fail"}`, status: 500, runs: 5},
		{name: "retry", path: path, body: `{"idempotency_key": "fail"}`, status: 201, runs: 6},
	})
	slow := agentRequest{path: path, body: `{"idempotency_key": "slow"}`}
	shop.whileRunning(slow, func() {
		shop.sendAll(protocols["AdCP"], []agentRequest{
			{name: "running", path: path, body: slow.body, status: 409, code: "IDEMPOTENCY_IN_FLIGHT", runs: 7},
			{name: "conflict", path: path, body: `{"idempotency_key": "slow", "a": 1}`,
				status: 409, code: "IDEMPOTENCY_CONFLICT", runs: 7},
		})
		answer, _ := shop.send(agentRequest{path: path, body: slow.body, status: 409})
		require.Equal(t, 1.0, answer["adcp_error"].(map[string]any)["retry_after"])
		require.Equal(t, "failed", answer["status"])
	})
	large, _ := shop.send(agentRequest{path: path, body: `{"a": "` + strings.Repeat("a", 1<<20) + `"}`, status: 413})
	require.Equal(t, "INVALID_REQUEST", protocols["AdCP"].errorCode(large))
}

// The capability that a service of AdCP declares is valid, and the answers are kept for at least as long.
func TestAgentsAdCPCapability(t *testing.T) {
	t.Parallel()
	schema := mustCompile(t, "test:schema", `{"type": "object", "required": ["supported", "replay_ttl_seconds"], "properties": {
		"supported": {"const": true}, "replay_ttl_seconds": {"type": "integer", "minimum": 3600, "maximum": 604800}}}`)
	if *published != "" {
		const file = "adcp/static/schemas/source/protocol/get-adcp-capabilities-response.json"
		schema = mustCompile(t, file+"#/properties/adcp/properties/idempotency", "")
	}
	text, err := json.Marshal(agents.AdCPCapability())
	require.NoError(t, err)
	declared, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	require.NoError(t, schema.Validate(declared))
	require.GreaterOrEqual(t, agents.AdCP().TTL, time.Duration(agents.AdCPCapability()["replay_ttl_seconds"].(int))*time.Second)
}

// Each refusal has a valid form in each protocol, and a status and a code that tell the agent what to do.
func TestAgentsRefusals(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/problems.md")
	require.NoError(t, err)
	problem := regexp.MustCompile("\n## ([a-z-]+)\n\nStatus (\\d+).*?`retry` is `([a-z-]+)`")
	documented := problem.FindAllStringSubmatch(string(page), -1)
	want := map[string][3]string{ // in ACP, UCP and AdCP
		"in-progress":       {"409 idempotency_in_flight", "503 in_progress", "409 IDEMPOTENCY_IN_FLIGHT"},
		"key-reused":        {"422 idempotency_conflict", "409 key_reused", "409 IDEMPOTENCY_CONFLICT"},
		"not-replayable":    {"500 not_replayable", "500 not_replayable", "409 IDEMPOTENCY_EXPIRED"},
		"replay-refused":    {"403 replay_refused", "403 replay_refused", "403 PERMISSION_DENIED"},
		"outcome-unknown":   {"500 outcome_unknown", "500 outcome_unknown", "409 IDEMPOTENCY_EXPIRED"},
		"key-missing":       {"400 idempotency_key_required", "400 key_missing", "400 INVALID_REQUEST"},
		"key-invalid":       {"400 key_invalid", "400 key_invalid", "400 INVALID_REQUEST"},
		"user-unknown":      {"401 user_unknown", "401 user_unknown", "401 AUTH_REQUIRED"},
		"body-too-large":    {"413 body_too_large", "413 body_too_large", "413 INVALID_REQUEST"},
		"body-invalid":      {"400 body_invalid", "400 body_invalid", "400 INVALID_REQUEST"},
		"body-consumed":     {"500 body_consumed", "500 body_consumed", "500 CONFIGURATION_ERROR"},
		"overloaded":        {"503 overloaded", "503 overloaded", "503 SERVICE_UNAVAILABLE"},
		"quota-exceeded":    {"429 quota_exceeded", "429 quota_exceeded", "429 RATE_LIMITED"},
		"store-unavailable": {"503 store_unavailable", "503 store_unavailable", "503 SERVICE_UNAVAILABLE"},
	}
	require.Len(t, documented, len(want))
	for i, name := range []string{"ACP", "UCP", "AdCP"} {
		p := protocols[name]
		schema := compileSchema(t, p)
		for _, problem := range documented {
			status, err := strconv.Atoi(problem[2])
			require.NoError(t, err)
			refusal := &idempotency.Error{
				Code: problem[1], Status: status, Retry: idempotency.Retry(problem[3]), RetryAfter: 1500 * time.Millisecond,
				Detail: "Why.", Header: http.Header{"X-Own": {"1"}},
			}
			answer := httptest.NewRecorder()
			p.options.ErrorHandler(answer, httptest.NewRequest(http.MethodPost, "/", nil), refusal)
			var body map[string]any
			require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &body))
			require.NoError(t, schema.Validate(body), problem[1])
			require.Equal(t, want[problem[1]][i], strconv.Itoa(answer.Code)+" "+p.errorCode(body).(string))
			require.Equal(t, "2", answer.Header().Get("Retry-After"))
			require.Equal(t, "1", answer.Header().Get("X-Own"))
			require.Equal(t, "no-store", answer.Header().Get("Cache-Control"))
			require.Equal(t, status == http.StatusUnauthorized, answer.Header().Get("WWW-Authenticate") != "")
		}
	}
}

// An answer is replayed for at least as long as the protocol demands.
func TestAgentsKeepAnswers(t *testing.T) {
	t.Parallel()
	for name, hours := range map[string]time.Duration{"ACP": 24, "UCP": 48, "AdCP": 7 * 24} {
		synctest.Test(t, func(t *testing.T) {
			shop := &agentShop{t: t}
			service := protocols[name].serve(t, shop)
			send := func() (replayed string) {
				r := httptest.NewRequest(http.MethodPost, "/checkout_sessions", strings.NewReader(`{"idempotency_key": "k"}`))
				r.Header = http.Header{
					"Authorization": {"Bearer alice"}, "Content-Type": {"application/json"}, "Idempotency-Key": {"k"},
				}
				answer := httptest.NewRecorder()
				service.ServeHTTP(answer, r)
				require.Equal(t, 201, answer.Code)
				return answer.Header().Get("Idempotent-Replayed")
			}
			require.Empty(t, send())
			time.Sleep(hours*time.Hour - time.Second)
			require.Equal(t, "true", send(), name)
			time.Sleep(2 * time.Second)
			require.Empty(t, send(), name)
			require.EqualValues(t, 2, shop.runs.Load())
		})
	}
}
