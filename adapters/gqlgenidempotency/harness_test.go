package gqlgenidempotency_test

import (
	"bytes"
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

// resolvers are those of the shop. The zero value of each field is one that succeeds.
type resolvers struct {
	pay   func(ctx context.Context, cents int) (*shop.Order, error)
	state func(ctx context.Context) (string, error)
	note  func(ctx context.Context) (*string, error)
}

// counted returns the resolvers of a service, which counts their runs and reads.
func (r resolvers) counted(s *service) shop.Resolvers {
	return shop.Resolvers{
		Pay: func(ctx context.Context, cents int) (*shop.Order, error) {
			run := s.runs.Add(1)
			if r.pay != nil {
				return r.pay(ctx, cents)
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
			if r.state != nil {
				return r.state(ctx)
			}
			return fmt.Sprint("read ", read), nil
		},
		Note: func(ctx context.Context, upper bool) (*string, error) {
			if r.note != nil {
				return r.note(ctx)
			}
			text := "<a & b>"
			if upper {
				text = "<A & B>"
			}
			return &text, nil
		},
	}
}

// setup is a service to be served. The zero value of each field is its default.
type setup struct {
	resolvers
	store   idempotency.Store // a MemoryStore
	runner  idempotency.RunnerOptions
	options gqlgenidempotency.Options
	user    gqlgenidempotency.UserFunc // from the field User of the header
	bare    bool                       // not guarded
	adjust  func(*handler.Server)
}

// service is a server and a client of it.
type service struct {
	t           *testing.T
	url         string
	runner      *idempotency.Runner
	runs, reads atomic.Int64 // of root fields; of the fields that are read
}

type userKey struct{}

func userFromContext(ctx context.Context) (string, error) {
	user, _ := ctx.Value(userKey{}).(string)
	return user, nil
}

func serve(t *testing.T, s setup) *service {
	t.Helper()
	if s.store == nil {
		s.store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	}
	if s.user == nil {
		s.user = userFromContext
	}
	if s.runner.Logger == nil {
		s.runner.Logger = slog.New(slog.DiscardHandler)
	}
	sv := &service{t: t}
	var err error
	sv.runner, err = idempotency.NewRunner(s.store, s.runner)
	require.NoError(t, err)
	guard, err := gqlgenidempotency.New(sv.runner, s.user, s.options)
	require.NoError(t, err)

	graph := handler.New(shop.New(s.resolvers.counted(sv)))
	graph.AddTransport(transport.POST{})
	graph.AddTransport(transport.MultipartForm{})
	graph.SetRecoverFunc(func(context.Context, any) error { return errors.New("recovered") })
	if !s.bare {
		graph.Use(guard)
	}
	if s.adjust != nil {
		s.adjust(graph)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := "alice"
		if r.Header.Get("User") != "" {
			user = r.Header.Get("User")
		}
		graph.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	}))
	t.Cleanup(server.Close)
	sv.url = server.URL
	return sv
}

// request is what a client sends. Header has the names and values of fields.
type request struct {
	query     string
	variables string // JSON
	header    []string
}

// answer is what a client sees.
type answer struct {
	Status     int
	Data       json.RawMessage
	Errors     []map[string]any
	Extensions struct {
		Idempotency struct{ Replayed []string }
	}
	Text string
}

func (a answer) replayed() []string { return a.Extensions.Idempotency.Replayed }

// code is that of the only error.
func (a answer) code() any {
	if len(a.Errors) != 1 {
		return fmt.Sprintf("%d errors: %s", len(a.Errors), a.Text)
	}
	extensions, _ := a.Errors[0]["extensions"].(map[string]any)
	return extensions["code"]
}

func (s *service) send(ctx context.Context, r request) (answer, error) {
	body, err := json.Marshal(map[string]any{"query": r.query, "variables": json.RawMessage(orNull(r.variables))})
	if err != nil {
		return answer{}, err
	}
	return s.post(ctx, "application/json", body, r.header)
}

func orNull(text string) string {
	if text == "" {
		return "null"
	}
	return text
}

func (s *service) post(ctx context.Context, media string, body []byte, header []string) (got answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", media)
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

// do sends a request that must be answered.
func (s *service) do(r request) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	got, err := s.send(ctx, r)
	require.NoError(s.t, err)
	return got
}

// run executes a document.
func (s *service) run(query string, header ...string) answer {
	s.t.Helper()
	return s.do(request{query: query, header: header})
}

// patience is how long something may take that is certain to come.
const patience = 30 * time.Second

func await[T any](t *testing.T, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatal("waited in vain")
	}
	return v
}
