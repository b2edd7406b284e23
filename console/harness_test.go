package console_test

import (
	"context"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
	"github.com/idempotency-go/idempotency/resolve"
)

// desk is a console on a server, and an operator in front of it.
type desk struct {
	t       testing.TB
	url     string // of the console, with a slash at its end
	client  *http.Client
	console *console.Console

	mu     sync.Mutex
	log    strings.Builder
	events []idempotency.Event
}

func bob(*http.Request) (string, error) { return "bob", nil }

func everybody(*http.Request) bool { return true }

// newDesk serves a console of a store under a path. Options may be changed before.
func newDesk(t *testing.T, store idempotency.Inspector, change ...func(*console.Options)) *desk {
	t.Helper()
	d, pages := newPages(t, store, change...)
	mux := http.NewServeMux()
	mux.Handle("/admin/idempotency/", http.StripPrefix("/admin/idempotency", pages))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	d.url, d.client = server.URL+"/admin/idempotency/", server.Client()
	return d
}

// newDirectDesk is newDesk without a server, for a fuzz test that has no time for one.
func newDirectDesk(t testing.TB, store idempotency.Inspector, change ...func(*console.Options)) *desk {
	t.Helper()
	d, pages := newPages(t, store, change...)
	d.url, d.client = "http://direct/", &http.Client{Transport: direct{pages}}
	return d
}

type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	r = r.Clone(r.Context())
	if r.Body == nil {
		r.Body = http.NoBody
	}
	d.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

func newPages(t testing.TB, store idempotency.Inspector, change ...func(*console.Options)) (*desk, *console.Console) {
	t.Helper()
	d := &desk{t: t}
	opts := console.Options{Operator: bob, Show: everybody, Resolve: resolve.Options{
		Logger: slog.New(slog.NewTextHandler(d, nil)),
		Observer: func(_ context.Context, e idempotency.Event) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.events = append(d.events, e)
		},
	}}
	for _, change := range change {
		change(&opts)
	}
	pages, err := console.New(store, opts)
	require.NoError(t, err)
	d.console = pages
	return d, pages
}

// Write implements [io.Writer]: it is the log.
func (d *desk) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *desk) logged() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// shown is an answer of the console.
type shown struct {
	status int
	header http.Header
	url    *url.URL // after redirects
	page   string
}

func (d *desk) do(r *http.Request) shown {
	d.t.Helper()
	resp, err := d.client.Do(r)
	require.NoError(d.t, err)
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	require.NoError(d.t, err)
	return shown{resp.StatusCode, resp.Header, resp.Request.URL, string(page)}
}

// get opens a page, by an address that is relative to the console.
func (d *desk) get(address string) shown {
	d.t.Helper()
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodGet, d.url+address, nil)
	require.NoError(d.t, err)
	return d.do(r)
}

// request is a form that is sent as a browser sends it.
func (d *desk) request(address string, form url.Values) *http.Request {
	d.t.Helper()
	r, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.url+address, strings.NewReader(form.Encode()))
	require.NoError(d.t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return r
}

func (d *desk) post(address string, form url.Values) shown {
	d.t.Helper()
	return d.do(d.request(address, form))
}

// form returns the form of a page that has a button, with its hidden fields and some of the others filled in.
func (d *desk) form(page, button string, fields ...string) url.Values {
	d.t.Helper()
	form := url.Values{"do": {button}}
	before, _, ok := strings.Cut(page, `value="`+button+`"`)
	require.True(d.t, ok, "there is no button %s in %s", button, page)
	before = before[strings.LastIndex(before, "<form"):]
	for _, field := range hidden.FindAllStringSubmatch(before, -1) {
		form.Set(field[1], html.UnescapeString(field[2]))
	}
	require.Len(d.t, form, 3)
	for i := 0; i < len(fields); i += 2 {
		require.Contains(d.t, before, `name="`+fields[i]+`"`)
		form.Set(fields[i], fields[i+1])
	}
	return form
}

var hidden = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)">`)

func addressOf(key idempotency.Key) string {
	return "operation?id=" + key.OperationID().String()
}

// text is what a person reads of a page: in one line, without marks.
func (s shown) text() string {
	return strings.Join(strings.Fields(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(s.page, " "))), " ")
}

// done is what the page says of the change that led to it.
func (s shown) done() string {
	_, done, _ := strings.Cut(s.page, `<p class="done" role="status">`)
	done, _, _ = strings.Cut(done, "<")
	return done
}

// fault is what the page says is wrong.
func (s shown) fault() string {
	_, fault, _ := strings.Cut(s.page, `<p class="fault" role="alert">`)
	fault, _, _ = strings.Cut(fault, "<")
	return html.UnescapeString(fault)
}

// links are the addresses in a page that match a pattern.
func (s shown) links(pattern string) (links []string) {
	for _, link := range regexp.MustCompile(`href="(`+pattern+`)"`).FindAllStringSubmatch(s.page, -1) {
		links = append(links, html.UnescapeString(link[1]))
	}
	return links
}

func newStore() *idempotency.MemoryStore {
	return idempotency.NewMemoryStore(idempotency.MemoryOptions{})
}

var order = idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: "order-1"}

func numbered(i int) idempotency.Key {
	return idempotency.Key{User: "alice", Endpoint: "POST /payments", ID: fmt.Sprintf("order-%d", i)}
}

var request = idempotency.ClaimRequest{
	Fingerprint: idempotency.Fingerprint{1}, Lease: time.Hour, TTL: 24 * time.Hour, TakeOver: true,
}

func begin(t testing.TB, store idempotency.Store, key idempotency.Key, lease time.Duration) idempotency.Claim {
	t.Helper()
	asked := request
	asked.Lease = lease
	_, claim, err := store.Begin(t.Context(), key, asked)
	require.NoError(t, err)
	require.NotNil(t, claim)
	return claim
}

type resolver interface {
	idempotency.Store
	idempotency.Resolver
}

// abandon begins an operation whose lease lapses at once, with results of steps by name.
func abandon(t testing.TB, store resolver, key idempotency.Key, steps ...string) idempotency.Claim {
	t.Helper()
	claim := begin(t, store, key, time.Hour)
	for _, name := range steps {
		_, err := claim.(idempotency.Checkpointer).Checkpoint(t.Context(), name, []byte(`"secret result"`))
		require.NoError(t, err)
	}
	require.NoError(t, claim.Extend(t.Context(), 1))
	require.Eventually(t, func() bool { return inspect(t, store, key).State == idempotency.StateAbandoned },
		time.Minute, time.Millisecond)
	return claim
}

func complete(t testing.TB, store idempotency.Store, key idempotency.Key, resp idempotency.Response) {
	t.Helper()
	require.NoError(t, begin(t, store, key, time.Hour).Complete(t.Context(), resp, request.TTL))
}

func inspect(t testing.TB, store idempotency.Inspector, key idempotency.Key) idempotency.Entry {
	t.Helper()
	entry, err := store.Inspect(t.Context(), key)
	require.NoError(t, err)
	return entry
}

var receipt = idempotency.Response{
	Status: 201, Header: "Content-Type: application/json\nX-Account: 4711\n", Trailer: "X-Sum: 12\n",
	Body: []byte(`{"receipt":"R-17"}`), Note: "payment pay_1",
}

// troubled is a store whose methods fail on demand.
type troubled struct {
	*idempotency.MemoryStore
	inspect, list, change error
	before                func() // is called before a change
}

var errDown = errors.New("dial tcp 10.0.0.7:6379: connection refused")

func (s *troubled) InspectOperation(ctx context.Context, operation uuid.UUID) (idempotency.Entry, error) {
	entry, err := s.MemoryStore.InspectOperation(ctx, operation)
	return entry, errors.Join(err, s.inspect)
}

func (s *troubled) List(ctx context.Context, request idempotency.ListRequest) (idempotency.Listing, error) {
	listing, err := s.MemoryStore.List(ctx, request)
	return listing, errors.Join(err, s.list)
}

func (s *troubled) Resolve(ctx context.Context, e idempotency.Entry, r idempotency.Resolution) error {
	if s.before != nil {
		s.before()
	}
	if err := errors.Join(ctx.Err(), s.change); err != nil {
		return err
	}
	return s.MemoryStore.Resolve(ctx, e, r)
}

func (s *troubled) Forget(ctx context.Context, e idempotency.Entry) error {
	if s.change != nil {
		return s.change
	}
	return s.MemoryStore.Forget(ctx, e)
}
