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
	"github.com/idempotency-go/idempotency/gqlgenidempotency"
	"github.com/idempotency-go/idempotency/gqlgenidempotency/testdata/shop"
)

// resolvers are those of the shop. The zero value of each field is one that succeeds.
type resolvers struct {
	pay   func(ctx context.Context, input shop.PayInput) (*shop.Order, error)
	state func(ctx context.Context) (string, error)
	note  func(ctx context.Context) (*string, error)

	runs, reads *atomic.Int64 // of mutation fields; of fields below
}

func (r resolvers) Mutation() shop.MutationResolver { return mutations{r} }
func (r resolvers) Order() shop.OrderResolver       { return orders{r} }
func (r resolvers) Query() shop.QueryResolver       { return queries{r} }

type mutations struct{ resolvers }

func (m mutations) Pay(ctx context.Context, input shop.PayInput) (*shop.Order, error) {
	run := m.runs.Add(1)
	if m.pay != nil {
		return m.pay(ctx, input)
	}
	return &shop.Order{ID: fmt.Sprint(run), Cents: input.Cents}, nil
}

func (m mutations) Refund(_ context.Context, order string, cents *int, _ *string) (*shop.Order, error) {
	m.runs.Add(1)
	if order == "none" {
		return nil, nil
	}
	return &shop.Order{ID: order, Cents: -*cents}, nil
}

func (m mutations) Attach(_ context.Context, _ string, file graphql.Upload) (*string, error) {
	m.runs.Add(1)
	content, err := io.ReadAll(file.File)
	text := string(content)
	return &text, err
}

type orders struct{ resolvers }

func (o orders) State(ctx context.Context, _ *shop.Order) (string, error) {
	read := o.reads.Add(1)
	if o.state != nil {
		return o.state(ctx)
	}
	return fmt.Sprint("read ", read), nil
}

func (o orders) Note(ctx context.Context, _ *shop.Order, upper *bool) (*string, error) {
	if o.note != nil {
		return o.note(ctx)
	}
	text := "<a & b>"
	if *upper {
		text = "<A & B>"
	}
	return &text, nil
}

type queries struct{ resolvers }

func (q queries) Order(_ context.Context, id string) (*shop.Order, error) {
	q.runs.Add(1)
	return &shop.Order{ID: id}, nil
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
	runs, reads atomic.Int64
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

	s.resolvers.runs, s.resolvers.reads = &sv.runs, &sv.reads
	graph := handler.New(shop.NewExecutableSchema(shop.Config{Resolvers: s.resolvers}))
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
