package main_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// The fields that the guard compares are those that the service gets. So two requests with one key are one request only if
// the service cannot tell them apart.
func TestTheServiceGetsWhatIsCompared(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-fingerprint-headers", "Stripe-Account,api_key")...)
	account, hop := with("Stripe-Account", "a"), func(name string) request { return with("Connection", name) }
	for name, test := range map[string]struct {
		first, second []request
		code          string // of the second answer; empty: it is the first one
		gets          http.Header
	}{
		"the field":             {[]request{account}, []request{account}, "", http.Header{"Stripe-Account": {"a"}}},
		"removed by Connection": {[]request{account, hop("stripe-account")}, []request{account}, "key-reused", http.Header{"Stripe-Account": nil}},
		"removed in a list":     {[]request{account, hop("close, Stripe-Account")}, nil, "", http.Header{"Stripe-Account": nil}},
		"coding removed": {[]request{with("Content-Encoding", "gzip"), hop("Content-Encoding")},
			[]request{with("Content-Encoding", "gzip")}, "key-reused", http.Header{"Content-Encoding": nil}},
		"override removed": {[]request{with("X-Http-Method-Override", "DELETE"), hop("X-HTTP-Method-Override")},
			[]request{with("X-Http-Method-Override", "DELETE")}, "key-reused", http.Header{"X-Http-Method-Override": nil}},
		"media type removed": {[]request{with("Content-Type", "text/a"), hop("Content-Type")},
			[]request{with("Content-Type", "text/a")}, "key-reused", http.Header{"Content-Type": nil}},
		"two media types": {[]request{with("Content-Type", "text/a"), with("Content-Type", "text/b")},
			[]request{with("Content-Type", "text/a")}, "", http.Header{"Content-Type": {"text/a"}}},
		"the key removed": {[]request{hop("Idempotency-Key")}, nil, "", http.Header{}},
		"look-alike":      {[]request{with("Stripe_account", "b")}, nil, "", http.Header{"Stripe_account": nil}},
		"look-alike beside the field": {[]request{account, with("Stripe_account", "b")}, []request{account}, "",
			http.Header{"Stripe-Account": {"a"}, "Stripe_account": nil}},
		"look-alike with a dot":       {[]request{with("Stripe.account", "b")}, nil, "", http.Header{"Stripe.account": nil}},
		"look-alike of an underscore": {[]request{with("Api-Key", "b")}, nil, "", http.Header{"Api-Key": nil}},
		"an underscore of one's own": {[]request{with("Api_key", "a")}, []request{with("Api_key", "b")}, "key-reused",
			http.Header{"Api_key": {"a"}}},
		"look-alike of an override":   {[]request{with("X_http_method_override", "DELETE")}, nil, "", http.Header{"X_http_method_override": nil}},
		"look-alike of another":       {[]request{with("X-Method_override", "DELETE")}, nil, "", http.Header{"X-Method_override": nil}},
		"look-alike of a third":       {[]request{with("X_http_method", "DELETE")}, nil, "", http.Header{"X_http_method": nil}},
		"look-alike of the coding":    {[]request{with("Content_encoding", "gzip")}, nil, "", http.Header{"Content_encoding": nil}},
		"look-alike of the type":      {[]request{with("Content_type", "text/b")}, nil, "", http.Header{"Content_type": nil}},
		"look-alike of the framing":   {[]request{with("Transfer_encoding", "chunked")}, nil, "", http.Header{"Transfer_encoding": nil}},
		"look-alike of the length":    {[]request{with("Content_length", "0")}, nil, "", http.Header{"Content_length": nil}},
		"another field, as it is":     {[]request{with("X_kept", "1")}, []request{with("X_kept", "2")}, "", http.Header{"X_kept": {"1"}}},
		"another field of the client": {[]request{with("X-Hop", "1"), hop("X-Hop")}, nil, "", http.Header{"X-Hop": nil}},
	} {
		key := keyed(fmt.Sprintf("%x", name))
		require.Equal(t, 201, p.post("/things", "x", append(test.first, as("alice"), key)...).status, name)
		for field, want := range test.gets {
			require.Equal(t, want, upstream.last(t).Header[field], "%s: %s", name, field)
		}
		ran := upstream.count()
		second := p.post("/things", "x", append(test.second, as("alice"), key)...)
		require.Equal(t, test.code, second.code(), "%s: %s", name, second)
		require.Equal(t, test.code == "", second.replayed, "%s: %s", name, second)
		require.Equal(t, ran, upstream.count(), name)
	}
}

// A token that the service does not get names nobody.
func TestTokenThatConnectionRemoves(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	key := ecKey(t)
	p := start(t, upstream.URL, append([]string{"-jwt-key", publicPEM(t, key)}, issuer...)...)
	alice := bearer(token(t, jwt.SigningMethodES256, key, claims()))
	require.Equal(t, "user-unknown", p.post("/", "x", keyed("k"), alice, with("Connection", "Authorization")).code())
	require.Zero(t, upstream.count())
	require.Equal(t, 201, p.post("/", "x", keyed("k"), alice).status)
}

// A service may take an override of the method from a request of any method. Such a request must not pass the guard by.
func TestOverriddenMethod(t *testing.T) {
	t.Parallel()
	upstream := serve(t, created)
	lenient := start(t, upstream.URL, append(asHeader, "-store", "memory:")...)
	strict := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-required")...)
	override := func(value string) request { return with("X-Http-Method-Override", value) }
	key, reused := keyed("k"), keyed("reused")
	for name, test := range map[string]struct {
		proxy   *process
		changes []request
		status  int
	}{
		"a GET that is a POST":        {strict, []request{method("GET"), override("POST")}, 400},
		"in small letters":            {strict, []request{method("PUT"), override("patch")}, 400},
		"in a list":                   {strict, []request{method("PUT"), override("DELETE, post")}, 400},
		"in a second line":            {strict, []request{method("PUT"), override("DELETE"), override("POST")}, 400},
		"by the second name":          {strict, []request{method("PUT"), with("X-Http-Method", "POST")}, 400},
		"by the third name":           {strict, []request{method("PUT"), with("X-Method-Override", "POST")}, 400},
		"by a look-alike":             {strict, []request{method("PUT"), with("X_method_override", "POST")}, 201},
		"a method that is no guarded": {strict, []request{method("PUT"), override("DELETE")}, 201},
		"no override":                 {strict, []request{method("PUT")}, 201},
		"with a key":                  {lenient, []request{method("PUT"), override("POST"), key}, 400},
		"without one":                 {lenient, []request{method("PUT"), override("POST")}, 201},
		"a guarded request":           {strict, []request{override("PATCH"), key}, 201},
		"the same, another method":    {strict, []request{override("DELETE"), reused}, 409},
		"the same, none":              {strict, []request{method("POST"), reused}, 409},
	} {
		t.Run(name, func(t *testing.T) {
			if test.status == 409 { // whatever comes first, the key is another request's
				test.proxy.post("/overridden", "x", as("alice"), override("PATCH"), reused)
			}
			ran := upstream.count()
			got := test.proxy.post("/overridden", "x", append(test.changes, as("alice"))...)
			require.Equal(t, test.status, got.status, got)
			require.Equal(t, test.status != 201, upstream.count() == ran || got.replayed)
			if test.status == 400 {
				require.Contains(t, got.body, `"retry":"never"`)
			}
		})
	}
}
