package client_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestRedirects(t *testing.T) {
	t.Parallel()
	tests := []struct {
		status int
		method string
		lands  string
		keyed  bool
	}{
		{301, "POST", "GET", false}, {302, "POST", "GET", false}, {303, "POST", "GET", false},
		{307, "POST", "POST", true}, {308, "POST", "POST", true}, {307, "PATCH", "PATCH", true},
	}
	for _, tt := range tests {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s http2=%t", tt.status, tt.method, http2), func(t *testing.T) {
				t.Parallel()
				var got arrivals
				server := testservice.Listen(t, got.record(func(w http.ResponseWriter, r *http.Request, n int) {
					switch {
					case n%2 == 1: // of each hop
						w.WriteHeader(http.StatusServiceUnavailable)
					case r.URL.Path != "/3":
						next := "/" + string(r.URL.Path[1]+1)
						http.Redirect(w, r, next, tt.status)
					}
				}), http2)
				transport, oauth := impatient(server), impatient(server).Base
				transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
					r = r.Clone(r.Context()) // as an oauth2.Transport does
					r.Header.Set("Authorization", "Bearer token")
					return oauth.RoundTrip(r)
				})
				r := newPost(t, server.URL+"/1", "order 1")
				r.Method = tt.method
				a := do(transport, r)
				require.NoError(t, a.Err)
				all := got.list()
				if !tt.keyed {
					require.Equal(t, 503, a.Status, "a GET is sent once")
					require.Len(t, all, 3)
					require.Equal(t, arrival{method: "GET", path: "/2"}, all[2])
					return
				}
				require.Equal(t, 200, a.Status)
				key := got.requireOneKey(t, 6)
				require.Equal(t, arrival{tt.lands, "/3", "order 1", []string{key}}, all[5])
			})
		}
	}
}

func TestRedirectsToOtherHosts(t *testing.T) {
	t.Parallel()
	const a, b, c, random = "a.example.com", "b.example.com", "c.example.com", "a random UUID"
	const secureA, secureB = "https://" + a, "https://" + b
	tests := []struct {
		name   string
		hosts  []string
		key    string // of the context, or of the header
		header bool
		status int
		route  []string // hosts, by http unless it says https
		want   []string // the key that each host gets
		sent   int      // to the last host, which answers 503
		stays  int      // the number of hosts that get the body, if the next one must not
	}{
		{name: "random", hosts: []string{a}, route: []string{a, b}, want: []string{random, ""}, sent: 1, stays: 1},
		{name: "of the context", hosts: []string{a}, key: "k-1", route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's", hosts: []string{a}, key: "k-1", header: true, route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's, to GET", hosts: []string{a}, key: "k-1", header: true, status: 303, route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1},
		{name: "the caller's, to GET, both named", hosts: []string{a, b}, key: "k-1", header: true, status: 303,
			route: []string{a, b}, want: []string{"k-1", "k-1"}, sent: 4},
		{name: "of the context, to GET, both named", hosts: []string{a, b}, key: "k-1", status: 303, route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1},
		{name: "random, both named, 308", hosts: []string{a, b}, status: 308, route: []string{a, b},
			want: []string{random, random}, sent: 4},
		{name: "random, 308", hosts: []string{a}, status: 308, route: []string{a, b}, want: []string{random, ""}, sent: 1, stays: 1},
		{name: "random, 301", hosts: []string{a}, status: 301, route: []string{a, b}, want: []string{random, ""}, sent: 1},
		{name: "random, 302", hosts: []string{a}, status: 302, route: []string{a, b}, want: []string{random, ""}, sent: 1},
		{name: "random, both named", hosts: []string{a, b}, route: []string{a, b}, want: []string{random, random}, sent: 4},
		{name: "of the context, both named", hosts: []string{a, b}, key: "k-1", route: []string{a, b},
			want: []string{"k-1", "k-1"}, sent: 4},
		{name: "of the context, none named", key: "k-1", route: []string{a, b}, want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's, none named", key: "k-1", header: true, route: []string{a, b},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "of the context, same host, not named", key: "k-1", route: []string{a, a}, want: []string{"k-1", "k-1"}, sent: 1},
		{name: "of the context, same host in capitals", key: "k-1", route: []string{a, "A.example.com"},
			want: []string{"k-1", "k-1"}, sent: 1},
		{name: "none, to a named host", hosts: []string{b}, route: []string{a, b}, want: []string{"", random}, sent: 4},
		{name: "of the context, to a named host", hosts: []string{b}, key: "k-1", route: []string{a, b},
			want: []string{"k-1", "k-1"}, sent: 4},
		{name: "of the context, there and back", key: "k-1", route: []string{a, b, a},
			want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "the caller's, there and around", key: "k-1", header: true, route: []string{a, b, b},
			want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "random, to another host and back", hosts: []string{a}, route: []string{a, b, a},
			want: []string{random, "", ""}, sent: 1, stays: 1},
		{name: "none, to another host and a named one", hosts: []string{c}, route: []string{a, b, c},
			want: []string{"", "", ""}, sent: 1},
		{name: "random, to a named host and on", hosts: []string{b}, route: []string{a, b, c},
			want: []string{"", random, ""}, sent: 1, stays: 2},
		{name: "random, between named hosts and on", hosts: []string{a, b}, route: []string{a, b, c},
			want: []string{random, random, ""}, sent: 1, stays: 2},
		{name: "set to nothing", hosts: []string{a}, header: true, route: []string{a, b}, want: []string{"", ""}, sent: 1},
		{name: "none", route: []string{a, b, c}, want: []string{"", "", ""}, sent: 1},

		{name: "random, out of https", hosts: []string{a}, route: []string{secureA, a},
			want: []string{random, ""}, sent: 1, stays: 1},
		{name: "random, out of https, port in the URL", hosts: []string{a}, route: []string{secureA, a + ":80"},
			want: []string{random, ""}, sent: 1, stays: 1},
		{name: "random, out of https to another named host", hosts: []string{a, b}, route: []string{secureA, b},
			want: []string{random, ""}, sent: 1, stays: 1},
		{name: "random, by https and out of it", hosts: []string{a, b}, route: []string{secureA, secureB, b},
			want: []string{random, random, ""}, sent: 1, stays: 2},
		{name: "random, to https and out of it", hosts: []string{a}, route: []string{a, secureA, a},
			want: []string{random, random, ""}, sent: 1, stays: 2},
		{name: "random, to a named host by https and out of it", hosts: []string{b}, route: []string{a, secureB, b},
			want: []string{"", random, ""}, sent: 1, stays: 2},
		{name: "random, to https", hosts: []string{a}, route: []string{a, secureA}, want: []string{random, random}, sent: 4},
		{name: "of the context, out of https", hosts: []string{a}, key: "k-1", route: []string{secureA, a},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "of the context, out of https, not named", key: "k-1", route: []string{secureA, a},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "of the context, out of https and back", key: "k-1", route: []string{secureA, a, secureA},
			want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "of the context, out of https and back, named", hosts: []string{a}, key: "k-1",
			route: []string{secureA, a, secureA}, want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "the caller's, out of https and back, named", hosts: []string{a}, key: "k-1", header: true,
			route: []string{secureA, a, secureA}, want: []string{"k-1", "", ""}, sent: 1, stays: 1},
		{name: "random, out of https and back", hosts: []string{a}, route: []string{secureA, a, secureA},
			want: []string{random, "", ""}, sent: 1, stays: 1},
		{name: "random, out of https and on by https", hosts: []string{a, b}, route: []string{secureA, a, secureB, secureB},
			want: []string{random, "", "", ""}, sent: 1, stays: 1},
		{name: "of the context, to https, not named", key: "k-1", route: []string{a, secureA},
			want: []string{"k-1", "k-1"}, sent: 1},
		{name: "the caller's, out of https", hosts: []string{a}, key: "k-1", header: true, route: []string{secureA, a},
			want: []string{"k-1", ""}, sent: 1, stays: 1},
		{name: "the caller's, out of https to GET", hosts: []string{a}, key: "k-1", header: true, status: 303,
			route: []string{secureA, a}, want: []string{"k-1", ""}, sent: 1},
		{name: "none, out of https", route: []string{secureA, a}, want: []string{"", ""}, sent: 1},
		{name: "none, out of https to a named host", hosts: []string{b}, route: []string{secureA, b},
			want: []string{"", ""}, sent: 1},
		{name: "none, out of https to a named host and back", hosts: []string{b}, route: []string{secureA, b, secureB},
			want: []string{"", "", ""}, sent: 1},
	}
	address := func(hop string) string {
		if strings.Contains(hop, "://") {
			return hop
		}
		return "http://" + hop
	}
	for _, tt := range tests {
		for _, body := range []string{"", "order 1"} {
			t.Run(fmt.Sprintf("%s, body %q", tt.name, body), func(t *testing.T) {
				t.Parallel()
				var got arrivals
				handler := got.record(func(w http.ResponseWriter, r *http.Request, _ int) {
					hop, _ := strconv.Atoi(r.URL.Path[1:])
					if hop+1 == len(tt.route) {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					next := fmt.Sprintf("%s/%d", address(tt.route[hop+1]), hop+1)
					http.Redirect(w, r, next, cmp.Or(tt.status, http.StatusTemporaryRedirect))
				})
				transport := impatient(listenTwice(t, handler)) // which finds the servers under every name in example.com
				transport.Hosts = tt.hosts
				r := newPost(t, address(tt.route[0])+"/0", body)
				switch {
				case tt.header:
					r.Header.Set("Idempotency-Key", tt.key)
				case tt.key != "":
					r = r.WithContext(client.WithKey(t.Context(), tt.key))
				}
				answered := do(transport, r)

				all := got.list()
				if body != "" && tt.stays > 0 {
					require.ErrorIs(t, answered.Err, client.ErrRedirected)
					require.ErrorContains(t, answered.Err, tt.route[tt.stays])
					require.Len(t, all, tt.stays)
					var failed *client.Error
					require.ErrorAs(t, answered.Err, &failed)
					require.Equal(t, strings.Join(all[tt.stays-1].keys, ""), failed.Key)
					require.Zero(t, failed.Attempts)
				} else {
					require.Equal(t, 503, answered.Status)
					require.Len(t, all, len(tt.route)-1+tt.sent)
				}
				generated := ""
				for i, arrived := range all {
					if i == 0 || tt.status == 0 || tt.status >= 307 {
						require.Equal(t, arrival{"POST", arrived.path, body, arrived.keys}, arrived)
					} else {
						require.Equal(t, arrival{"GET", arrived.path, "", arrived.keys}, arrived)
					}
					key := strings.Join(arrived.keys, " and ")
					want := tt.want[min(i, len(tt.want)-1)]
					if want == random {
						generated = cmp.Or(generated, key)
						require.NoError(t, idempotency.ValidateUUID(key))
						want = generated
					}
					require.Equal(t, want, key, "request %d", i+1)
				}
			})
		}
	}
}

// listenTwice returns a server with TLS. The client of the server sends requests with http to a second server without TLS.
func listenTwice(t *testing.T, handler http.Handler) *httptest.Server {
	clear, secure := testservice.Listen(t, handler, false), testservice.Listen(t, handler, true)
	base := secure.Client().Transport.(*http.Transport)
	dial := base.DialContext
	base.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasSuffix(address, ":80") {
			address = clear.Listener.Addr().String()
		}
		return dial(ctx, network, address)
	}
	return secure
}

// If Base does not set Response.Request, the origin of a redirect is unknown.
func TestRedirectOfAnUnknownRequest(t *testing.T) {
	t.Parallel()
	const fresh = "a new key"
	for _, row := range []struct {
		name   string
		hosts  []string
		key    string // of the context
		method string
		body   string
		to     string
		want   string // the key of the second request
		stays  bool
	}{
		{"no host named", nil, "k-1", "POST", "", "https://service.test", "", false},
		{"no host named, body", nil, "k-1", "POST", "order 1", "https://service.test", "", true},
		{"named host", []string{"service.test"}, "", "POST", "order 1", "https://service.test", fresh, false},
		{"named host, not https", []string{"service.test"}, "", "POST", "", "http://service.test", "", false},
		{"named host, not https, body", []string{"service.test"}, "", "POST", "order 1", "http://service.test", "", true},
		{"other host", []string{"service.test"}, "", "POST", "", "https://other.test", "", false},
		{"other host, body", []string{"service.test"}, "", "POST", "order 1", "https://other.test", "", true},
		{"other host, method without a key", []string{"service.test"}, "", "PUT", "order 1", "https://other.test", "", false},
		{"no key at all", nil, "", "POST", "order 1", "https://other.test", "", false},
	} {
		var keys []string
		transport := client.Transport{Hosts: row.hosts, Base: baseFunc(func(r *http.Request) (*http.Response, error) {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			if len(keys) == 1 {
				return replying(307, http.Header{"Location": {row.to + "/2"}})(r)
			}
			return replying(200, nil)(r)
		})}
		r := newPost(t, "https://service.test/1", row.body)
		r.Method = row.method
		if row.key != "" {
			r = r.WithContext(client.WithKey(t.Context(), row.key))
		}
		answered := do(&transport, r)
		if row.stays {
			require.ErrorIs(t, answered.Err, client.ErrRedirected, row.name)
			require.Len(t, keys, 1, row.name)
			continue
		}
		require.Equal(t, 200, answered.Status, row.name)
		require.Len(t, keys, 2, row.name)
		if row.want == fresh {
			require.NoError(t, idempotency.ValidateUUID(keys[1]), row.name)
			require.NotEqual(t, keys[0], keys[1], row.name)
		} else {
			require.Equal(t, row.want, keys[1], row.name)
		}
	}
}

// A redirect of unknown origin may have led away before, so no later redirect leads back.
func TestRedirectAfterOneOfAnUnknownRequest(t *testing.T) {
	t.Parallel()
	for address, keyed := range map[string]bool{
		"http://service.test/2":  false,
		"https://other.test/2":   false,
		"https://service.test/2": true,
	} {
		second := newPost(t, address, "order 1")
		second.Response = &http.Response{StatusCode: 307}
		third := newPost(t, "https://service.test/3", "order 1")
		third.Response = &http.Response{StatusCode: 307, Request: second}
		transport := client.Transport{Hosts: []string{"service.test"}}
		transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
			require.Equal(t, keyed, r.Header.Get("Idempotency-Key") != "", address)
			return replying(200, nil)(r)
		})
		_, err := transport.RoundTrip(third)
		if keyed {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, client.ErrRedirected, "it may have had a key")
		}
	}
}

func TestRedirectThatIsNotFollowedClosesTheBody(t *testing.T) {
	t.Parallel()
	first := newPost(t, "http://service.test/1", "order 1")
	first.Header.Set("Idempotency-Key", "not a key")
	second := newPost(t, "http://other.test/2", "order 1")
	body := &requestBody{Reader: strings.NewReader("order 1")}
	second.Body, second.Response = body, &http.Response{StatusCode: 307, Request: first}
	transport := client.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(*http.Request) (*http.Response, error) {
		t.Error("it was sent")
		return replying(200, nil)(second)
	})
	resp, err := transport.RoundTrip(second)
	require.Nil(t, resp)
	var failed *client.Error
	require.ErrorAs(t, err, &failed)
	require.Empty(t, failed.Key, "WithKey would not take it")
	require.ErrorIs(t, err, client.ErrRedirected)
	require.ErrorContains(t, err, "other.test")
	require.EqualValues(t, 1, body.closed.Load())
}
