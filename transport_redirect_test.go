package idempotency_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/internal/testservice"
)

// A key, and the body that was sent with it, are for the hosts that honour keys.
func TestRedirectTakesKeyAndBodyToNamedHostsOnly(t *testing.T) {
	t.Parallel()
	const same, named, unnamed = "same host", "other host in Hosts", "other host"
	const random, ofContext, callers = "random", "of the context", "the caller's"
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, key := range []string{random, ofContext, callers} {
			for _, to := range []string{same, named, unnamed} {
				t.Run(fmt.Sprint(status, ", key ", key, ", to ", to), func(t *testing.T) {
					t.Parallel()
					var first, second arrivals
					unavailable := func(w http.ResponseWriter, _ *http.Request, _ int) { w.WriteHeader(503) }
					other := testservice.Listen(t, second.record(unavailable), false)
					target, landed := "/2", &first
					if to != same {
						target, landed = strings.Replace(other.URL, "127.0.0.1", "localhost", 1)+"/2", &second
					}
					server := testservice.Listen(t, first.record(func(w http.ResponseWriter, r *http.Request, n int) {
						if r.URL.Path == "/2" {
							unavailable(w, r, n)
							return
						}
						http.Redirect(w, r, target, status)
					}), false)
					transport := impatient(server)
					if to == named {
						transport.Hosts = append(transport.Hosts, "localhost")
					}
					r := newPost(t, server.URL+"/1", "order 1")
					switch key {
					case ofContext:
						r = r.WithContext(idempotency.WithKey(t.Context(), "k-1"))
					case callers:
						r.Header.Set("Idempotency-Key", `"k-1"`)
					}
					answered := do(transport, r)

					all := first.list()
					start := all[0]
					require.Equal(t, arrival{"POST", "/1", "order 1", start.keys}, start)
					require.Len(t, start.keys, 1)
					keepsBody := status >= 307
					if keepsBody && to == unnamed {
						require.Len(t, all, 1)
						require.Empty(t, second.list())
						require.ErrorIs(t, answered.Err, idempotency.ErrRedirected)
						var failed *idempotency.TransportError
						require.ErrorAs(t, answered.Err, &failed)
						require.Equal(t, strings.Trim(start.keys[0], `"`), failed.Key)
						require.Zero(t, failed.Attempts)
						return
					}
					require.Equal(t, 503, answered.Status)
					want, times := arrival{method: "GET", path: "/2"}, 1
					if keepsBody {
						want = arrival{method: "POST", path: "/2", body: "order 1"}
					}
					if to != unnamed && (keepsBody || key == callers) {
						want.keys, times = start.keys, 4
					}
					all = landed.list()
					if to == same {
						all = all[1:]
					}
					require.Len(t, all, times)
					for _, got := range all {
						require.Equal(t, want, got)
					}
				})
			}
		}
	}
}

// What nobody knows the origin of may have been led away before, and is not led back.
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
		transport := idempotency.Transport{Hosts: []string{"service.test"}}
		transport.Base = baseFunc(func(r *http.Request) (*http.Response, error) {
			require.Equal(t, keyed, r.Header.Get("Idempotency-Key") != "", address)
			return replying(200, nil)(r)
		})
		_, err := transport.RoundTrip(third)
		if keyed {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, idempotency.ErrRedirected, "it may have had a key")
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
	transport := idempotency.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(*http.Request) (*http.Response, error) {
		t.Error("it was sent")
		return replying(200, nil)(second)
	})
	resp, err := transport.RoundTrip(second)
	require.Nil(t, resp)
	var failed *idempotency.TransportError
	require.ErrorAs(t, err, &failed)
	require.Empty(t, failed.Key, "WithKey would not take it")
	require.ErrorIs(t, err, idempotency.ErrRedirected)
	require.ErrorContains(t, err, "other.test")
	require.EqualValues(t, 1, body.closed.Load())
}
