package idempotency_test

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// withHeaders adds the lines of h, whose names are in canonical form.
func withHeaders(h http.Header) testservice.Edit {
	return func(r *http.Request) { maps.Copy(r.Header, h) }
}

// constant is a FingerprintFunc that tells no request from another.
func constant(*http.Request, []byte) (idempotency.Fingerprint, error) {
	return idempotency.Fingerprint{1}, nil
}

// A field that selects what a request does is a part of its fingerprint, whoever computes the rest.
func TestOptionFingerprintHeaders(t *testing.T) {
	t.Parallel()
	account := func(lines ...string) http.Header { return http.Header{"Stripe-Account": lines} }
	field := func(name string, lines ...string) http.Header { return http.Header{name: lines} }
	const override = "X-Http-Method-Override"
	long := strings.Repeat("a", 1000)
	rows := []struct {
		name          string
		first, second http.Header
		same          bool
	}{
		{"no such field", nil, nil, true},
		{"same account", account("a"), account("a"), true},
		{"other account", account("a"), account("b"), false},
		{"account added", nil, account("a"), false},
		{"account dropped", account("a"), nil, false},
		{"account in capitals", account("a"), account("A"), false},
		{"empty and none", nil, account(""), false},
		{"long, same", account(long), account(long), true},
		{"long, other end", account(long + "a"), account(long + "b"), false},
		{"two lines, same", account("a", "b"), account("a", "b"), true},
		{"another line", account("a"), account("a", "b"), false},
		{"other second line", account("a", "b"), account("a", "c"), false},
		{"lines in another order", account("a", "b"), account("b", "a"), false},
		{"lines joined", account("a", "b"), account("a, b"), false},
		{"bytes moved from line to line", account("ab", "c"), account("a", "bc"), false},
		{"value moved from field to field", account("a"), field("X-Tenant", "a"), false},
		{"other field of the option", field("X-Tenant", "a"), field("X-Tenant", "b"), false},

		{"same coding", field("Content-Encoding", "own"), field("Content-Encoding", "own"), true},
		{"other coding", field("Content-Encoding", "own"), field("Content-Encoding", "gzip"), false},
		{"coding dropped", field("Content-Encoding", "own"), nil, false},
		{"same override", field(override, "PUT"), field(override, "PUT"), true},
		{"other override", field(override, "PUT"), field(override, "DELETE"), false},
		{"override added", nil, field(override, "DELETE"), false},
		{"override of another name", nil, field("X-Http-Method", "DELETE"), false},
		{"override of a third name", nil, field("X-Method-Override", "DELETE"), false},
		{"field that selects nothing", field("X-Other", "a"), field("X-Other", "b"), true},
	}
	for name, function := range map[string]struct {
		f idempotency.FingerprintFunc
		c content
	}{
		"default":   {nil, content{"", "text/plain", "b"}},
		"raw":       {idempotency.FingerprintRaw, content{"", "text/plain", "b"}},
		"JSON":      {idempotency.FingerprintJSON, content{"", js, `{"a":1}`}},
		"multipart": {idempotency.FingerprintMultipart, form("x", "1")},
		"own":       {constant, content{"", "text/plain", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Opts: idempotency.Options{
				Fingerprint: function.f, FingerprintHeaders: []string{"stripe-account", "X-TENANT", "Stripe-Account"},
			}}.Serve(t, testservice.Echo)
			media := testservice.WithHeader("Content-Type", function.c.media)
			for i, row := range rows {
				key := fmt.Sprint("k", i)
				first := svc.Post(key, function.c.body, media, withHeaders(row.first))
				require.Equal(t, http.StatusCreated, first.Status, row.name)
				second := svc.Post(key, function.c.body, media, withHeaders(row.second))
				if row.same {
					testservice.RequireReplay(t, first, second)
				} else {
					require.Equal(t, http.StatusConflict, second.Status, row.name)
					testservice.RequireProblem(t, second, http.StatusConflict, "key-reused")
				}
				require.EqualValues(t, i+1, svc.Runs.Load(), row.name)
			}
		})
	}
}

func TestFieldsThatSelectByDefault(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{}.Serve(t, testservice.Echo)
	first := svc.Post("k", "b", testservice.WithHeader("Stripe-Account", "a"))
	testservice.RequireReplay(t, first, svc.Post("k", "b", testservice.WithHeader("Stripe-Account", "b")))
	coded := testservice.WithHeader("Content-Encoding", "own")
	testservice.RequireProblem(t, svc.Post("k", "b", coded), http.StatusConflict, "key-reused")
	testservice.RequireReplay(t, svc.Post("l", "b", coded), svc.Post("l", "b", coded))
	testservice.RequireProblem(t, svc.Post("l", "c", coded), http.StatusConflict, "key-reused")
}

func TestOptionFingerprintHeadersTakesWhatAHeaderCanHave(t *testing.T) {
	t.Parallel()
	keys := []string{"Idempotency-Key", "X-Key"}
	for name, fault := range map[string]string{
		"":                  "is not a field name",
		"X Tenant":          "is not a field name",
		"X-Tenant:":         "is not a field name",
		"idempotency-key":   "has the key",
		"x-key":             "has the key",
		"host":              "net/http",
		"Transfer-Encoding": "net/http",
		"trailer":           "net/http",
	} {
		opts := idempotency.Options{Headers: keys, FingerprintHeaders: []string{"X-Tenant", name}}
		_, err := idempotency.New(testservice.NewSpyStore(), idempotency.SingleUser, opts)
		require.ErrorContains(t, err, "FingerprintHeaders", name)
		require.ErrorContains(t, err, fault, name)
	}
}

// The method that counts is the one that a request has when it arrives, wherever it has it from.
func TestMethodOverriddenByOuterMiddleware(t *testing.T) {
	t.Parallel()
	overriding := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if method := r.Header.Get("X-Http-Method-Override"); method != "" {
				r.Method = method
			}
			next.ServeHTTP(w, r)
		})
	}
	remove := testservice.WithHeader("X-Http-Method-Override", http.MethodDelete)
	for name, row := range map[string]struct {
		methods []string
		guarded bool
	}{
		"guarded":     {[]string{http.MethodPost, http.MethodDelete}, true},
		"not guarded": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			svc := testservice.Setup{Outer: overriding, Opts: idempotency.Options{Methods: row.methods}}.Serve(t,
				func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-Method", r.Method) })
			created, removed := svc.Post("k", "b"), svc.Post("k", "b", remove)
			require.Equal(t, http.MethodPost, created.Header.Get("X-Method"))
			require.Equal(t, http.MethodDelete, removed.Header.Get("X-Method"), "another method is another endpoint")
			require.EqualValues(t, 2, svc.Runs.Load())

			testservice.RequireReplay(t, created, svc.Post("k", "b"))
			again := svc.Post("k", "b", remove)
			if !row.guarded {
				require.Equal(t, removed, again)
				require.EqualValues(t, 3, svc.Runs.Load())
				require.EqualValues(t, 2, svc.Store.Begins.Load(), "of the POST")
				return
			}
			testservice.RequireReplay(t, removed, again)
			require.EqualValues(t, 2, svc.Runs.Load())
			require.Equal(t, "DELETE /payments", svc.Journal.Last(t).Key.Endpoint)
		})
	}
}

// Requests that were sent to another release of this package are compared with what it has stored.
func TestFingerprintsWithFieldsAreFrozen(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		header http.Header
		want   string
	}{
		"none": {nil, idempotency.Fingerprint{1}.String()},
		"three": {http.Header{"X-Tenant": {"a", "b"}, "Content-Encoding": {"gzip"}, "Account": {"c"}},
			"af41f5f9a89da37cc9f46bac4918fe204497199b8ca93cb9ef1a9929a88d8c08"},
	} {
		svc := testservice.Setup{Opts: idempotency.Options{
			Fingerprint: constant, FingerprintHeaders: []string{"X-Tenant", "Account"},
		}}.Guard(t, testservice.Echo)
		svc.Call("k", "b", withHeaders(row.header))
		rec, _, err := svc.Store.Begin(t.Context(), svc.Journal.Last(t).Key, idempotency.ClaimRequest{Lease: time.Second})
		require.NoError(t, err)
		require.Equal(t, row.want, rec.Fingerprint.String(), name)
	}
}
