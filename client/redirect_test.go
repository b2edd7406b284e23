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
		status     int
		method     string
		wantMethod string
		keepsKey   bool
	}{
		{301, "POST", "GET", false}, {302, "POST", "GET", false}, {303, "POST", "GET", false},
		{307, "POST", "POST", true}, {308, "POST", "POST", true}, {307, "PATCH", "PATCH", true},
	}
	for _, tt := range tests {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s http2=%t", tt.status, tt.method, http2), func(t *testing.T) {
				t.Parallel()
				var got arrivals
				server := testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, r *http.Request, n int) {
					switch {
					case n%2 == 1: // the first attempt at each address
						w.WriteHeader(http.StatusServiceUnavailable)
					case r.URL.Path != "/3":
						next := "/" + string(r.URL.Path[1]+1)
						http.Redirect(w, r, next, tt.status)
					}
				}), http2)
				transport, base := newImpatientTransport(server), newImpatientTransport(server).Base
				transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
					r = r.Clone(r.Context()) // as oauth2.Transport does
					r.Header.Set("Authorization", "Bearer token")
					return base.RoundTrip(r)
				})
				r := newPostRequest(t, server.URL+"/1", "order 1")
				r.Method = tt.method
				a := sendRequest(transport, r)
				require.NoError(t, a.Err)
				all := got.list()
				if !tt.keepsKey {
					require.Equal(t, 503, a.Status, "a GET is sent once")
					require.Len(t, all, 3)
					require.Equal(t, arrival{method: "GET", path: "/2"}, all[2])
					return
				}
				require.Equal(t, 200, a.Status)
				key := got.requireOneKey(t, 6)
				require.Equal(t, arrival{tt.wantMethod, "/3", "order 1", []string{key}}, all[5])
			})
		}
	}
}

func TestRedirectsToOtherHosts(t *testing.T) {
	t.Parallel()
	const a, b, c, random = "a.example.com", "b.example.com", "c.example.com", "a random UUID"
	const secureA, secureB = "https://" + a, "https://" + b
	tests := []struct {
		name         string
		hosts        []string
		key          string // of the context, or of the header if keyInHeader
		keyInHeader  bool
		status       int
		route        []string // hosts; with http unless the entry begins with https
		wantKeys     []string // the key that each host gets
		wantAttempts int      // at the last host, which answers 503
		stopAfter    int      // the number of hosts that get the body, if the next host must not get the body; otherwise 0
	}{
		{name: "random key", hosts: []string{a}, route: []string{a, b}, wantKeys: []string{random, ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key of the context", hosts: []string{a}, key: "k-1", route: []string{a, b},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key in the header", hosts: []string{a}, key: "k-1", keyInHeader: true, route: []string{a, b},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key in the header, to GET", hosts: []string{a}, key: "k-1", keyInHeader: true, status: 303, route: []string{a, b},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1},
		{name: "key in the header, to GET, both named", hosts: []string{a, b}, key: "k-1", keyInHeader: true, status: 303,
			route: []string{a, b}, wantKeys: []string{"k-1", "k-1"}, wantAttempts: 4},
		{name: "key of the context, to GET, both named", hosts: []string{a, b}, key: "k-1", status: 303, route: []string{a, b},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1},
		{name: "random key, both named, 308", hosts: []string{a, b}, status: 308, route: []string{a, b},
			wantKeys: []string{random, random}, wantAttempts: 4},
		{name: "random key, 308", hosts: []string{a}, status: 308, route: []string{a, b}, wantKeys: []string{random, ""},
			wantAttempts: 1, stopAfter: 1},
		{name: "random key, 301", hosts: []string{a}, status: 301, route: []string{a, b}, wantKeys: []string{random, ""},
			wantAttempts: 1},
		{name: "random key, 302", hosts: []string{a}, status: 302, route: []string{a, b}, wantKeys: []string{random, ""},
			wantAttempts: 1},
		{name: "random key, both named", hosts: []string{a, b}, route: []string{a, b}, wantKeys: []string{random, random},
			wantAttempts: 4},
		{name: "key of the context, both named", hosts: []string{a, b}, key: "k-1", route: []string{a, b},
			wantKeys: []string{"k-1", "k-1"}, wantAttempts: 4},
		{name: "key of the context, none named", key: "k-1", route: []string{a, b}, wantKeys: []string{"k-1", ""},
			wantAttempts: 1, stopAfter: 1},
		{name: "key in the header, none named", key: "k-1", keyInHeader: true, route: []string{a, b},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key of the context, same host, not named", key: "k-1", route: []string{a, a},
			wantKeys: []string{"k-1", "k-1"}, wantAttempts: 1},
		{name: "key of the context, same host in capital letters", key: "k-1", route: []string{a, "A.example.com"},
			wantKeys: []string{"k-1", "k-1"}, wantAttempts: 1},
		{name: "no key, to a named host", hosts: []string{b}, route: []string{a, b}, wantKeys: []string{"", random}, wantAttempts: 4},
		{name: "key of the context, to a named host", hosts: []string{b}, key: "k-1", route: []string{a, b},
			wantKeys: []string{"k-1", "k-1"}, wantAttempts: 4},
		{name: "key of the context, to another host and back", key: "k-1", route: []string{a, b, a},
			wantKeys: []string{"k-1", "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key in the header, to another host twice", key: "k-1", keyInHeader: true, route: []string{a, b, b},
			wantKeys: []string{"k-1", "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "random key, to another host and back", hosts: []string{a}, route: []string{a, b, a},
			wantKeys: []string{random, "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "no key, to another host and a named one", hosts: []string{c}, route: []string{a, b, c},
			wantKeys: []string{"", "", ""}, wantAttempts: 1},
		{name: "random key, to a named host and on to another host", hosts: []string{b}, route: []string{a, b, c},
			wantKeys: []string{"", random, ""}, wantAttempts: 1, stopAfter: 2},
		{name: "random key, between named hosts and on to another host", hosts: []string{a, b}, route: []string{a, b, c},
			wantKeys: []string{random, random, ""}, wantAttempts: 1, stopAfter: 2},
		{name: "empty header", hosts: []string{a}, keyInHeader: true, route: []string{a, b}, wantKeys: []string{"", ""},
			wantAttempts: 1},
		{name: "no key", route: []string{a, b, c}, wantKeys: []string{"", "", ""}, wantAttempts: 1},

		{name: "random key, out of https", hosts: []string{a}, route: []string{secureA, a},
			wantKeys: []string{random, ""}, wantAttempts: 1, stopAfter: 1},
		{name: "random key, out of https, port in the URL", hosts: []string{a}, route: []string{secureA, a + ":80"},
			wantKeys: []string{random, ""}, wantAttempts: 1, stopAfter: 1},
		{name: "random key, out of https to another named host", hosts: []string{a, b}, route: []string{secureA, b},
			wantKeys: []string{random, ""}, wantAttempts: 1, stopAfter: 1},
		{name: "random key, between named hosts with https, and out of https", hosts: []string{a, b},
			route: []string{secureA, secureB, b}, wantKeys: []string{random, random, ""}, wantAttempts: 1, stopAfter: 2},
		{name: "random key, to https and out of https", hosts: []string{a}, route: []string{a, secureA, a},
			wantKeys: []string{random, random, ""}, wantAttempts: 1, stopAfter: 2},
		{name: "random key, to a named host with https, and out of https", hosts: []string{b}, route: []string{a, secureB, b},
			wantKeys: []string{"", random, ""}, wantAttempts: 1, stopAfter: 2},
		{name: "random key, to https", hosts: []string{a}, route: []string{a, secureA}, wantKeys: []string{random, random},
			wantAttempts: 4},
		{name: "key of the context, out of https", hosts: []string{a}, key: "k-1", route: []string{secureA, a},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key of the context, out of https, not named", key: "k-1", route: []string{secureA, a},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key of the context, out of https and back", key: "k-1", route: []string{secureA, a, secureA},
			wantKeys: []string{"k-1", "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key of the context, out of https and back, named", hosts: []string{a}, key: "k-1",
			route: []string{secureA, a, secureA}, wantKeys: []string{"k-1", "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key in the header, out of https and back, named", hosts: []string{a}, key: "k-1", keyInHeader: true,
			route: []string{secureA, a, secureA}, wantKeys: []string{"k-1", "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "random key, out of https and back", hosts: []string{a}, route: []string{secureA, a, secureA},
			wantKeys: []string{random, "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "random key, out of https and on with https", hosts: []string{a, b}, route: []string{secureA, a, secureB, secureB},
			wantKeys: []string{random, "", "", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key of the context, to https, not named", key: "k-1", route: []string{a, secureA},
			wantKeys: []string{"k-1", "k-1"}, wantAttempts: 1},
		{name: "key in the header, out of https", hosts: []string{a}, key: "k-1", keyInHeader: true, route: []string{secureA, a},
			wantKeys: []string{"k-1", ""}, wantAttempts: 1, stopAfter: 1},
		{name: "key in the header, out of https to GET", hosts: []string{a}, key: "k-1", keyInHeader: true, status: 303,
			route: []string{secureA, a}, wantKeys: []string{"k-1", ""}, wantAttempts: 1},
		{name: "no key, out of https", route: []string{secureA, a}, wantKeys: []string{"", ""}, wantAttempts: 1},
		{name: "no key, out of https to a named host", hosts: []string{b}, route: []string{secureA, b},
			wantKeys: []string{"", ""}, wantAttempts: 1},
		{name: "no key, out of https to a named host and back", hosts: []string{b}, route: []string{secureA, b, secureB},
			wantKeys: []string{"", "", ""}, wantAttempts: 1},
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
				handler := got.recordRequests(func(w http.ResponseWriter, r *http.Request, _ int) {
					hop, _ := strconv.Atoi(r.URL.Path[1:])
					if hop+1 == len(tt.route) {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					next := fmt.Sprintf("%s/%d", address(tt.route[hop+1]), hop+1)
					http.Redirect(w, r, next, cmp.Or(tt.status, http.StatusTemporaryRedirect))
				})
				transport := newImpatientTransport(listenWithAndWithoutTLS(t, handler)) // resolves every name in example.com
				transport.Hosts = tt.hosts
				r := newPostRequest(t, address(tt.route[0])+"/0", body)
				switch {
				case tt.keyInHeader:
					r.Header.Set("Idempotency-Key", tt.key)
				case tt.key != "":
					r = r.WithContext(client.WithKey(t.Context(), tt.key))
				}
				answered := sendRequest(transport, r)

				all := got.list()
				if body != "" && tt.stopAfter > 0 {
					require.ErrorIs(t, answered.Err, client.ErrRedirected)
					require.ErrorContains(t, answered.Err, tt.route[tt.stopAfter])
					require.Len(t, all, tt.stopAfter)
					var failed *client.Error
					require.ErrorAs(t, answered.Err, &failed)
					require.Equal(t, strings.Join(all[tt.stopAfter-1].keys, ""), failed.Key)
					require.Zero(t, failed.Attempts)
				} else {
					require.Equal(t, 503, answered.Status)
					require.Len(t, all, len(tt.route)-1+tt.wantAttempts)
				}
				randomKey := ""
				for i, arrived := range all {
					if i == 0 || tt.status == 0 || tt.status >= 307 {
						require.Equal(t, arrival{"POST", arrived.path, body, arrived.keys}, arrived)
					} else {
						require.Equal(t, arrival{"GET", arrived.path, "", arrived.keys}, arrived)
					}
					key := strings.Join(arrived.keys, " and ")
					want := tt.wantKeys[min(i, len(tt.wantKeys)-1)]
					if want == random {
						randomKey = cmp.Or(randomKey, key)
						require.NoError(t, idempotency.ValidateUUID(key))
						want = randomKey
					}
					require.Equal(t, want, key, "request %d", i+1)
				}
			})
		}
	}
}

// listenWithAndWithoutTLS returns a server with TLS. The client of this server sends requests with http to a second server,
// which has no TLS.
func listenWithAndWithoutTLS(t *testing.T, handler http.Handler) *httptest.Server {
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

// If Base does not set Response.Request, the former address of a redirect is unknown.
func TestRedirectOfAnUnknownRequest(t *testing.T) {
	t.Parallel()
	const fresh = "a new key"
	for _, row := range []struct {
		name       string
		hosts      []string
		contextKey string
		method     string
		body       string
		newAddress string
		wantKey    string // of the second request
		isRefused  bool   // the redirect is not followed
	}{
		{"no host named", nil, "k-1", "POST", "", "https://service.test", "", false},
		{"no host named, body", nil, "k-1", "POST", "order 1", "https://service.test", "", true},
		{"named host", []string{"service.test"}, "", "POST", "order 1", "https://service.test", fresh, false},
		{"named host, not https", []string{"service.test"}, "", "POST", "", "http://service.test", "", false},
		{"named host, not https, body", []string{"service.test"}, "", "POST", "order 1", "http://service.test", "", true},
		{"other host", []string{"service.test"}, "", "POST", "", "https://other.test", "", false},
		{"other host, body", []string{"service.test"}, "", "POST", "order 1", "https://other.test", "", true},
		{"other host, method without a key", []string{"service.test"}, "", "PUT", "order 1", "https://other.test", "", false},
		{"no host named, no key", nil, "", "POST", "order 1", "https://other.test", "", false},
	} {
		var keys []string
		transport := client.Transport{Hosts: row.hosts, Base: baseFunc(func(r *http.Request) (*http.Response, error) {
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			if len(keys) == 1 {
				return replyWith(307, http.Header{"Location": {row.newAddress + "/2"}})(r)
			}
			return replyWith(200, nil)(r)
		})}
		r := newPostRequest(t, "https://service.test/1", row.body)
		r.Method = row.method
		if row.contextKey != "" {
			r = r.WithContext(client.WithKey(t.Context(), row.contextKey))
		}
		answer := sendRequest(&transport, r)
		if row.isRefused {
			require.ErrorIs(t, answer.Err, client.ErrRedirected, row.name)
			require.Len(t, keys, 1, row.name)
			continue
		}
		require.Equal(t, 200, answer.Status, row.name)
		require.Len(t, keys, 2, row.name)
		if row.wantKey == fresh {
			require.NoError(t, idempotency.ValidateUUID(keys[1]), row.name)
			require.NotEqual(t, keys[0], keys[1], row.name)
		} else {
			require.Equal(t, row.wantKey, keys[1], row.name)
		}
	}
}

// If the former address of a redirect is unknown, the redirect may have led away. Unless the new address is the named host
// with https, no later redirect leads back.
func TestRedirectAfterOneOfAnUnknownRequest(t *testing.T) {
	t.Parallel()
	for secondAddress, hasKey := range map[string]bool{
		"http://service.test/2":  false,
		"https://other.test/2":   false,
		"https://service.test/2": true,
	} {
		second := newPostRequest(t, secondAddress, "order 1")
		second.Response = &http.Response{StatusCode: 307}
		third := newPostRequest(t, "https://service.test/3", "order 1")
		third.Response = &http.Response{StatusCode: 307, Request: second}
		transport := client.Transport{Hosts: []string{"service.test"}}
		transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
			require.Equal(t, hasKey, r.Header.Get("Idempotency-Key") != "", secondAddress)
			return replyWith(200, nil)(r)
		})
		_, err := transport.RoundTrip(third)
		if hasKey {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, client.ErrRedirected, "it may have had a key")
		}
	}
}

func TestRedirectThatIsNotFollowedClosesTheBody(t *testing.T) {
	t.Parallel()
	first := newPostRequest(t, "http://service.test/1", "order 1")
	first.Header.Set("Idempotency-Key", "not a key")
	second := newPostRequest(t, "http://other.test/2", "order 1")
	body := &requestBody{Reader: strings.NewReader("order 1")}
	second.Body, second.Response = body, &http.Response{StatusCode: 307, Request: first}
	transport := client.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(*http.Request) (*http.Response, error) {
		t.Error("it was sent")
		return replyWith(200, nil)(second)
	})
	resp, err := transport.RoundTrip(second)
	require.Nil(t, resp)
	var failed *client.Error
	require.ErrorAs(t, err, &failed)
	require.Empty(t, failed.Key, "WithKey would not take it")
	require.ErrorIs(t, err, client.ErrRedirected)
	require.ErrorContains(t, err, "other.test")
	require.EqualValues(t, 1, body.closeCalls.Load())
}
