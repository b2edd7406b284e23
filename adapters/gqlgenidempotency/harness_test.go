package gqlgenidempotency_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/transport"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency"
	"github.com/idempotency-go/idempotency/adapters/gqlgenidempotency/testdata/shop"
)

// resolvers are the resolvers that a test replaces. A nil resolver stands for a resolver that succeeds.
type resolvers struct {
	payOrder  func(ctx context.Context, cents int) (*shop.Order, error)
	readState func(ctx context.Context) (string, error)
	readNote  func(ctx context.Context) (*string, error)
}

// countRuns returns all resolvers of the shop. They count their executions in s.
func (r resolvers) countRuns(s *service) shop.Resolvers {
	return shop.Resolvers{
		Pay: func(ctx context.Context, cents int) (*shop.Order, error) {
			run := s.runs.Add(1)
			if r.payOrder != nil {
				return r.payOrder(ctx, cents)
			}
			return &shop.Order{ID: fmt.Sprint(run), Cents: cents}, nil
		},
		Refund: func(_ context.Context, order string, cents int) (*shop.Order, error) {
			s.runs.Add(1)
			if order == "none" {
				return nil, nil
			}
			return &shop.Order{ID: order, Cents: -cents}, nil
		},
		Attach: func(_ context.Context, file graphql.Upload) (string, error) {
			s.runs.Add(1)
			content, err := io.ReadAll(file.File)
			return string(content), err
		},
		Order: func(_ context.Context, id string) (*shop.Order, error) {
			s.runs.Add(1)
			return &shop.Order{ID: id}, nil
		},
		State: func(ctx context.Context) (string, error) {
			read := s.reads.Add(1)
			if r.readState != nil {
				return r.readState(ctx)
			}
			return fmt.Sprint("read ", read), nil
		},
		Note: func(ctx context.Context, upper bool) (*string, error) {
			if r.readNote != nil {
				return r.readNote(ctx)
			}
			text := "<a & b>"
			if upper {
				text = "<A & B>"
			}
			return &text, nil
		},
	}
}

// setup configures a service. The comments state the defaults of fields without a value.
type setup struct {
	resolvers
	store         idempotency.Store // a MemoryStore
	runnerOptions idempotency.RunnerOptions
	guardOptions  gqlgenidempotency.Options
	identifyUser  gqlgenidempotency.UserFunc // reads the field User of the header
	isUnguarded   bool
	adjustServer  func(*handler.Server)
}

// service is a running server, to which the methods send requests.
type service struct {
	t       *testing.T
	baseURL string
	runner  *idempotency.Runner
	runs    atomic.Int64 // executions of root fields
	reads   atomic.Int64 // executions of the field state
}

type userKey struct{}

// userFromContext returns the user that the server has put into the context.
func userFromContext(ctx context.Context) (string, error) {
	user, _ := ctx.Value(userKey{}).(string)
	return user, nil
}

// startService starts a server, and stops the server at the end of the test.
func startService(t *testing.T, s setup) *service {
	t.Helper()
	if s.store == nil {
		s.store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	}
	if s.identifyUser == nil {
		s.identifyUser = userFromContext
	}
	if s.runnerOptions.Logger == nil {
		s.runnerOptions.Logger = slog.New(slog.DiscardHandler)
	}
	sv := &service{t: t}
	var err error
	sv.runner, err = idempotency.NewRunner(s.store, s.runnerOptions)
	require.NoError(t, err)
	guard, err := gqlgenidempotency.New(sv.runner, s.identifyUser, s.guardOptions)
	require.NoError(t, err)

	graph := handler.New(shop.New(s.resolvers.countRuns(sv)))
	graph.AddTransport(transport.POST{})
	graph.AddTransport(transport.MultipartForm{})
	graph.SetRecoverFunc(func(context.Context, any) error { return errors.New("recovered") })
	if !s.isUnguarded {
		graph.Use(guard)
	}
	if s.adjustServer != nil {
		s.adjustServer(graph)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := "alice"
		if r.Header.Get("User") != "" {
			user = r.Header.Get("User")
		}
		graph.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	}))
	t.Cleanup(server.Close)
	sv.baseURL = server.URL
	return sv
}

// request is a request of a client.
type request struct {
	document  string
	variables string   // JSON. Empty: none
	header    []string // names and values of fields, by turns
}

// answer is everything that a client receives for a request.
type answer struct {
	Status     int
	Data       json.RawMessage
	Errors     []map[string]any
	Extensions struct {
		Idempotency struct{ Replayed []string }
	}
	Text string
}

// replayedFields returns the names of the fields that the answer marks as replayed.
func (a answer) replayedFields() []string { return a.Extensions.Idempotency.Replayed }

// errorCode returns the code of the only error. If there are several errors or none, the result says so.
func (a answer) errorCode() any {
	if len(a.Errors) != 1 {
		return fmt.Sprintf("%d errors: %s", len(a.Errors), a.Text)
	}
	extensions, _ := a.Errors[0]["extensions"].(map[string]any)
	return extensions["code"]
}

// send sends a request as JSON.
func (s *service) send(ctx context.Context, r request) (answer, error) {
	body, err := json.Marshal(map[string]any{"query": r.document, "variables": json.RawMessage(cmp.Or(r.variables, "null"))})
	if err != nil {
		return answer{}, err
	}
	return s.post(ctx, "application/json", body, r.header)
}

// post sends a body of the given media type.
func (s *service) post(ctx context.Context, mediaType string, body []byte, header []string) (got answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.baseURL, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", mediaType)
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	got.Status, got.Text = resp.StatusCode, string(text)
	return got, json.Unmarshal(text, &got)
}

// sendAnswered sends a request, and requires an answer.
func (s *service) sendAnswered(r request) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitLimit)
	defer cancel()
	got, err := s.send(ctx, r)
	require.NoError(s.t, err)
	return got
}

// execute sends document without variables, and requires an answer.
func (s *service) execute(document string, header ...string) answer {
	s.t.Helper()
	return s.sendAnswered(request{document: document, header: header})
}

// waitLimit bounds the wait for events that are certain to happen.
const waitLimit = 30 * time.Second

// awaitValue returns the next value from c, and fails the test after waitLimit.
func awaitValue[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(waitLimit):
		t.Fatal("waited in vain")
	}
	return v
}
