package main_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// The guard compares the fields that the service receives. So two requests with one key are one request only if the service
// cannot distinguish them.
func TestTheServiceGetsWhatIsCompared(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-fingerprint-headers", "Stripe-Account,api_key")...)
	account, hop := withField("Stripe-Account", "a"), func(name string) requestOption { return withField("Connection", name) }
	for name, test := range map[string]struct {
		first, second []requestOption
		wantCode      string      // of the second answer. Empty: the second answer is a replay
		wantFields    http.Header // that the service receives
	}{
		"the field": {[]requestOption{account}, []requestOption{account}, "", http.Header{"Stripe-Account": {"a"}}},
		"removed by Connection": {[]requestOption{account, hop("stripe-account")}, []requestOption{account}, "key-reused",
			http.Header{"Stripe-Account": nil}},
		"removed in a list": {[]requestOption{account, hop("close, Stripe-Account")}, nil, "", http.Header{"Stripe-Account": nil}},
		"coding removed": {[]requestOption{withField("Content-Encoding", "gzip"), hop("Content-Encoding")},
			[]requestOption{withField("Content-Encoding", "gzip")}, "key-reused", http.Header{"Content-Encoding": nil}},
		"override removed": {[]requestOption{withField("X-Http-Method-Override", "DELETE"), hop("X-HTTP-Method-Override")},
			[]requestOption{withField("X-Http-Method-Override", "DELETE")}, "key-reused", http.Header{"X-Http-Method-Override": nil}},
		"media type removed": {[]requestOption{withField("Content-Type", "text/a"), hop("Content-Type")},
			[]requestOption{withField("Content-Type", "text/a")}, "key-reused", http.Header{"Content-Type": nil}},
		"two media types": {[]requestOption{withField("Content-Type", "text/a"), withField("Content-Type", "text/b")},
			[]requestOption{withField("Content-Type", "text/a")}, "", http.Header{"Content-Type": {"text/a"}}},
		"the key removed": {[]requestOption{hop("Idempotency-Key")}, nil, "", http.Header{}},
		"look-alike":      {[]requestOption{withField("Stripe_account", "b")}, nil, "", http.Header{"Stripe_account": nil}},
		"look-alike beside the field": {[]requestOption{account, withField("Stripe_account", "b")}, []requestOption{account}, "",
			http.Header{"Stripe-Account": {"a"}, "Stripe_account": nil}},
		"look-alike with a dot":       {[]requestOption{withField("Stripe.account", "b")}, nil, "", http.Header{"Stripe.account": nil}},
		"look-alike of an underscore": {[]requestOption{withField("Api-Key", "b")}, nil, "", http.Header{"Api-Key": nil}},
		"compared name with an underscore": {[]requestOption{withField("Api_key", "a")},
			[]requestOption{withField("Api_key", "b")}, "key-reused",
			http.Header{"Api_key": {"a"}}},
		"look-alike of an override": {[]requestOption{withField("X_http_method_override", "DELETE")}, nil, "",
			http.Header{"X_http_method_override": nil}},
		"look-alike of the second override": {[]requestOption{withField("X-Method_override", "DELETE")}, nil, "",
			http.Header{"X-Method_override": nil}},
		"look-alike of the third override": {[]requestOption{withField("X_http_method", "DELETE")}, nil, "",
			http.Header{"X_http_method": nil}},
		"look-alike of the coding": {[]requestOption{withField("Content_encoding", "gzip")}, nil, "",
			http.Header{"Content_encoding": nil}},
		"look-alike of the type": {[]requestOption{withField("Content_type", "text/b")}, nil, "",
			http.Header{"Content_type": nil}},
		"look-alike of the framing": {[]requestOption{withField("Transfer_encoding", "chunked")}, nil, "",
			http.Header{"Transfer_encoding": nil}},
		"look-alike of the length": {[]requestOption{withField("Content_length", "0")}, nil, "",
			http.Header{"Content_length": nil}},
		"field that is not compared": {[]requestOption{withField("X_kept", "1")}, []requestOption{withField("X_kept", "2")}, "",
			http.Header{"X_kept": {"1"}}},
		"client field removed by Connection": {[]requestOption{withField("X-Hop", "1"), hop("X-Hop")}, nil, "",
			http.Header{"X-Hop": nil}},
	} {
		key := withKey(fmt.Sprintf("%x", name))
		require.Equal(t, 201, p.post("/things", "x", append(test.first, withUser("alice"), key)...).status, name)
		for field, want := range test.wantFields {
			require.Equal(t, want, upstream.lastRequest(t).Header[field], "%s: %s", name, field)
		}
		before := upstream.requestCount()
		second := p.post("/things", "x", append(test.second, withUser("alice"), key)...)
		require.Equal(t, test.wantCode, second.problemCode(), "%s: %s", name, second)
		require.Equal(t, test.wantCode == "", second.replayed, "%s: %s", name, second)
		require.Equal(t, before, upstream.requestCount(), name)
	}
}

// A token that Connection removes from the request is refused, because the service does not receive the token.
func TestTokenThatConnectionRemoves(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	key := newECKey(t)
	p := startProxy(t, upstream.URL, append([]string{"-jwt-key", writePublicPEM(t, key)}, issuerFlags...)...)
	alice := withBearer(signToken(t, jwt.SigningMethodES256, key, newClaims()))
	require.Equal(t, "user-unknown", p.post("/", "x", withKey("k"), alice, withField("Connection", "Authorization")).problemCode())
	require.Zero(t, upstream.requestCount())
	require.Equal(t, 201, p.post("/", "x", withKey("k"), alice).status)
}

// A service may accept an override of the method in a request with any method. Such a request must not bypass the guard.
func TestOverriddenMethod(t *testing.T) {
	t.Parallel()
	upstream := startService(t, answerCreated)
	lenient := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:")...)
	strict := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-required")...)
	override := func(value string) requestOption { return withField("X-Http-Method-Override", value) }
	key, reused := withKey("k"), withKey("reused")
	for name, test := range map[string]struct {
		proxy      *process
		changes    []requestOption
		wantStatus int
	}{
		"a GET that is a POST":         {strict, []requestOption{withMethod("GET"), override("POST")}, 400},
		"in small letters":             {strict, []requestOption{withMethod("PUT"), override("patch")}, 400},
		"in a list":                    {strict, []requestOption{withMethod("PUT"), override("DELETE, post")}, 400},
		"in a second line":             {strict, []requestOption{withMethod("PUT"), override("DELETE"), override("POST")}, 400},
		"by the second name":           {strict, []requestOption{withMethod("PUT"), withField("X-Http-Method", "POST")}, 400},
		"by the third name":            {strict, []requestOption{withMethod("PUT"), withField("X-Method-Override", "POST")}, 400},
		"by a look-alike":              {strict, []requestOption{withMethod("PUT"), withField("X_method_override", "POST")}, 201},
		"to an unguarded method":       {strict, []requestOption{withMethod("PUT"), override("DELETE")}, 201},
		"no override":                  {strict, []requestOption{withMethod("PUT")}, 201},
		"with a key":                   {lenient, []requestOption{withMethod("PUT"), override("POST"), key}, 400},
		"without a key":                {lenient, []requestOption{withMethod("PUT"), override("POST")}, 201},
		"a guarded request":            {strict, []requestOption{override("PATCH"), key}, 201},
		"reused key, another override": {strict, []requestOption{override("DELETE"), reused}, 409},
		"reused key, no override":      {strict, []requestOption{withMethod("POST"), reused}, 409},
	} {
		t.Run(name, func(t *testing.T) {
			if test.wantStatus == 409 { // in any order of the cases, the key belongs to another request
				test.proxy.post("/overridden", "x", withUser("alice"), override("PATCH"), reused)
			}
			before := upstream.requestCount()
			got := test.proxy.post("/overridden", "x", append(test.changes, withUser("alice"))...)
			require.Equal(t, test.wantStatus, got.status, got)
			require.Equal(t, test.wantStatus != 201, upstream.requestCount() == before || got.replayed)
			if test.wantStatus == 400 {
				require.Contains(t, got.body, `"retry":"never"`)
			}
		})
	}
}
