package keyfrom_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestMain(m *testing.M) { testservice.Main(m) }

const (
	js       = "application/json"
	encoded  = "application/x-www-form-urlencoded"
	boundary = "multipart/form-data; boundary=x"
)

// setup describes a service. The zero value of a field is a default.
type setup struct {
	store   idempotency.Store // a MemoryStore
	user    idempotency.UserFunc
	opts    idempotency.Options
	sources []keyfrom.Source // the member /key of JSON, the parameter "key" and the field "key" of forms
	handler http.HandlerFunc // showRequest
	outer   func(http.Handler) http.Handler
}

// service is a guarded handler. Of a testservice.Service, only Send and Call can be used.
type service struct {
	*testservice.Service
	guard *keyfrom.Middleware
}

// userFromHeader is the user function of tests: the field "User", and "alice" by default.
func userFromHeader(r *http.Request) (string, error) {
	if users := r.Header["User"]; len(users) > 0 {
		return users[0], nil
	}
	return "alice", nil
}

func newService(t testing.TB, s setup) *service {
	t.Helper()
	svc := &service{Service: new(testservice.Service)}
	if s.store == nil {
		s.store = idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	}
	if s.user == nil {
		s.user = userFromHeader
	}
	if s.sources == nil {
		s.sources = []keyfrom.Source{keyfrom.JSON("/key"), keyfrom.Query("key"), keyfrom.Form("key")}
	}
	if s.handler == nil {
		s.handler = showRequest
	}
	if s.opts.Observer == nil {
		s.opts.Observer = svc.Journal.Observe
	}
	s.opts.Logger = slog.New(slog.DiscardHandler)
	guard, err := keyfrom.New(s.store, s.user, s.opts, s.sources...)
	require.NoError(t, err)
	testservice.ShutdownAtEnd(t, guard)
	svc.guard = guard
	svc.Handler = guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		svc.Runs.Add(1)
		s.handler(w, r)
	}))
	if s.outer != nil {
		svc.Handler = s.outer(svc.Handler)
	}
	return svc
}

// serve starts a real server, with HTTP/2 if isHTTP2 is true.
func (s *service) serve(t testing.TB, isHTTP2 bool) *service {
	s.Server = testservice.Listen(t, s.Handler, isHTTP2)
	return s
}

// shown is what showRequest answers.
type shown struct{ Key, Operation, Downstream, Header, Query, Body string }

// showRequest answers 201 with what the handler finds in the request.
func showRequest(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(err)
	}
	op, _ := idempotency.FromContext(r.Context())
	answer := shown{Key: op.Key.ID, Header: r.Header.Get("Idempotency-Key"), Query: r.URL.RawQuery, Body: string(body)}
	if op.Key.ID != "" {
		answer.Operation, answer.Downstream = op.ID.String(), op.DownstreamKey("charge")
	}
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(answer)
}

func decode(t testing.TB, a testservice.Answer) (s shown) {
	t.Helper()
	require.NoError(t, a.Err)
	require.Equal(t, http.StatusCreated, a.Status, a.Body)
	require.NoError(t, json.Unmarshal([]byte(a.Body), &s), a.Body)
	return s
}

// message is a request without the header of the key.
type message struct{ query, media, body string }

// sendTo sends m, with key in the header unless key is empty.
func (m message) sendTo(s *service, key string, edits ...testservice.Edit) testservice.Answer {
	all := append([]testservice.Edit{func(r *http.Request) {
		r.URL.RawQuery = m.query
		if m.media != "" {
			r.Header.Set("Content-Type", m.media)
		}
	}}, edits...)
	if s.Server == nil {
		return s.Call(key, m.body, all...)
	}
	return s.Send("/payments", key, m.body, all...)
}

// formOf returns a form with files. A part is "name=value", or is sent as it stands if it has a line end.
func formOf(parts ...string) message {
	var body strings.Builder
	for _, part := range parts {
		if !strings.Contains(part, "\r\n") {
			name, value, _ := strings.Cut(part, "=")
			part = fmt.Sprintf("Content-Disposition: form-data; name=%q\r\n\r\n%s", name, value)
		}
		body.WriteString("--x\r\n" + part + "\r\n")
	}
	return message{"", boundary, body.String() + "--x--\r\n"}
}

func as(user string) testservice.Edit { return testservice.WithHeader("User", user) }
