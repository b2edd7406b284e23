package client_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
)

// A client that gets outcome-unknown or not-replayable asks with its key and credentials what became of the operation. A lost
// answer to the question is asked for again.
func TestAskStatusOfARefusal(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verdict    idempotency.Verdict
		statusURL  string
		wantType   string
		wantStatus client.KeyStatus
	}{
		"outcome unknown": {idempotency.Unknown, "/status", "outcome-unknown", client.KeyStatus{State: "outcome-unknown"}},
		"not replayable": {
			idempotency.Tombstone, "/status?v=1", "not-replayable", client.KeyStatus{State: "not-kept", Status: 201},
		},
		"relative to the request": {
			idempotency.Tombstone, "status", "not-replayable", client.KeyStatus{State: "not-kept", Status: 201},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var questions atomic.Int32
			user := func(r *http.Request) (string, error) {
				name, _, _ := r.BasicAuth()
				return name, nil
			}
			idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, idempotency.Options{
				Abandoned: idempotency.Refuse, Lease: 100 * time.Millisecond,
				KeyInfo: idempotency.KeyInfo{StatusURL: test.statusURL},
			})
			require.NoError(t, err)
			mux := http.NewServeMux()
			mux.Handle("POST /payments", idem.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				idempotency.Decide(r.Context(), test.verdict)
				w.WriteHeader(http.StatusCreated)
			})))
			mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
				if questions.Add(1) == 1 {
					panic(http.ErrAbortHandler)
				}
				require.Empty(t, r.Header["Content-Type"])
				require.Equal(t, "gzip", r.Header.Get("Accept-Encoding"), "as net/http asks for by itself")
				idem.Status().ServeHTTP(w, r)
			})
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)

			transport := &client.Transport{Hosts: []string{"127.0.0.1"}, MinDelay: time.Millisecond}
			ctx := client.WithKey(t.Context(), "order-1")
			var resp *http.Response
			for range 2 {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/payments", strings.NewReader("4200"))
				require.NoError(t, err)
				req.SetBasicAuth("alice", "secret")
				req.Header.Set("Content-Type", "text/plain")
				req.Header.Set("Accept-Encoding", "zstd")
				resp, err = (&http.Client{Transport: transport}).Do(req)
				require.NoError(t, err)
				t.Cleanup(func() { resp.Body.Close() })
			}
			status, err := transport.AskStatus(t.Context(), resp)
			require.NoError(t, err)
			require.EqualValues(t, 2, questions.Load())
			require.Equal(t, test.wantStatus, client.KeyStatus{State: status.State, Status: status.Status})
			require.WithinDuration(t, time.Now(), status.Began, time.Minute)
			require.Equal(t, test.wantStatus.Status == 0, status.Completed.IsZero())

			var problem struct{ Type, Instance string }
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&problem), "the body is still there")
			require.True(t, strings.HasSuffix(problem.Type, "#"+test.wantType), problem.Type)
			require.Equal(t, problem.Instance, status.Instance)
		})
	}
}

// AskStatus sends nothing without an address at the same host.
func TestAskStatusWithoutAnAddress(t *testing.T) {
	t.Parallel()
	foreign := newStatusServer(t, http.StatusOK, `{"state":"done"}`)
	for name, test := range map[string]struct{ mediaType, body string }{
		"no problem":      {"application/json", `{"statusUrl":"/status"}`},
		"no statusUrl":    {"application/problem+json", `{"retry":"never"}`},
		"no string":       {"application/problem+json", `{"statusUrl":7}`},
		"no URL":          {"application/problem+json", `{"statusUrl":"http://%zz"}`},
		"another host":    {"application/problem+json", `{"statusUrl":"` + foreign.URL + `"}`},
		"another scheme":  {"application/problem+json", `{"statusUrl":"https://127.0.0.1/status"}`},
		"no body":         {"application/problem+json", ""},
		"not JSON at all": {"application/problem+json", "statusUrl: /status"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, transport := getProblem(t, test.mediaType, test.body)
			_, err := transport.AskStatus(t.Context(), resp)
			require.ErrorIs(t, err, client.ErrNoStatusURL)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.Equal(t, test.body, string(body))
		})
	}
}

// AskStatus returns an error if the server does not tell, or if the context ends first.
func TestAskStatusUnanswered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status    int
		body      string
		wantError string
	}{
		"refused":        {http.StatusUnauthorized, "", "status 401"},
		"store down":     {http.StatusServiceUnavailable, "", "status 503"},
		"not understood": {http.StatusOK, `{"state":7}`, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newStatusServer(t, test.status, test.body)
			resp, transport := getProblem(t, "application/problem+json", `{"statusUrl":"/status"}`)
			resp.Request.URL.Host = server.Listener.Addr().String()
			_, err := transport.AskStatus(t.Context(), resp)
			require.ErrorContains(t, err, test.wantError)

			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = transport.AskStatus(ctx, resp)
			require.ErrorIs(t, err, context.Canceled)
			var unanswered *client.Error
			require.ErrorAs(t, err, &unanswered)
			require.Equal(t, "order-1", unanswered.Key)
		})
	}
}

// newStatusServer starts a server that gives every question the same answer.
func newStatusServer(t *testing.T, status int, body string) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server
}

// getProblem returns an answer with the given body, and the transport that got the answer.
func getProblem(t *testing.T, mediaType, body string) (*http.Response, *client.Transport) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	transport := &client.Transport{Hosts: []string{"127.0.0.1"}, MinDelay: time.Millisecond}
	ctx := client.WithKey(t.Context(), "order-1")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil)
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp, transport
}
