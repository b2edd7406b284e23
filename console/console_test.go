package console_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/console"
	"github.com/idempotency-go/idempotency/resolve"
)

func TestNewReportsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := console.New(nil, console.Options{Resolve: resolve.Options{TTL: -1, MaxResponse: -1}})
	for _, fault := range []string{"store is nil", "Operator is nil", "TTL -1ns is negative", "MaxResponse -1 is negative"} {
		require.ErrorContains(t, err, fault)
	}
	require.Len(t, idempotency.Findings(err), 4)
	_, err = console.New(newStore(), console.Options{})
	require.EqualError(t, err, "idempotency: console: Operator is nil: every change records the name of an operator")
	_, err = console.New(struct{ idempotency.Inspector }{newStore()}, console.Options{Operator: bob})
	require.NoError(t, err, "a store that is no Resolver")
}

// Nobody sees or changes anything without a name.
func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	store := newStore()
	abandon(t, store, order)
	forms := newDesk(t, store)
	form := forms.form(forms.get(addressOf(order)).page, "forget", "reason", "because")
	for name, operator := range map[string]func(*http.Request) (string, error){
		"error":   func(*http.Request) (string, error) { return "bob", errors.New("session expired: token s3cr3t") },
		"no name": func(*http.Request) (string, error) { return " ", nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, store, func(o *console.Options) { o.Operator = operator })
			for _, address := range []string{"", "style.css", addressOf(order), "nothing"} {
				got := d.get(address)
				require.Equal(t, http.StatusForbidden, got.status)
				require.NotContains(t, got.page, "alice")
				require.NotContains(t, got.page, "s3cr3t")
			}
			require.Equal(t, http.StatusForbidden, d.post("change", form).status)
			require.Equal(t, http.StatusForbidden, d.post("search", url.Values{"user": {"alice"}}).status)
		})
	}
	require.Equal(t, idempotency.StateAbandoned, inspect(t, store, order).State)
}

// The name of the operator is asked for with each request, and is written into the change that this request makes.
func TestOperatorOfEachRequest(t *testing.T) {
	t.Parallel()
	store := newStore()
	d := newDesk(t, store, func(o *console.Options) {
		o.Operator = func(r *http.Request) (string, error) { return r.Header.Get("X-Operator"), nil }
	})
	for i, name := range []string{"carol", "dave"} {
		abandon(t, store, numbered(i))
		page := newDesk(t, store).get(addressOf(numbered(i))).page
		r := d.request("change", d.form(page, "not-happened", "reason", "not in the list"))
		r.Header.Set("X-Operator", name)
		d.do(r)
		require.Equal(t, name, inspect(t, store, numbered(i)).Resolved.Operator)
	}
}

// Every answer has the header that keeps others away, whatever it is.
func TestEveryAnswerIsProtected(t *testing.T) {
	t.Parallel()
	store := newStore()
	abandon(t, store, order)
	d := newDesk(t, store)
	d.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	broken := newDesk(t, &troubled{MemoryStore: store, list: errDown})
	stranger := newDesk(t, store, func(o *console.Options) {
		o.Operator = func(*http.Request) (string, error) { return "", errors.New("no") }
	})
	change := d.form(d.get(addressOf(order)).page, "not-happened", "reason", "because")
	for want, got := range map[int][]shown{
		200: {d.get(""), d.get("style.css"), d.get(addressOf(order))},
		303: {d.post("change", change), d.post("search", url.Values{"user": {"alice"}})},
		400: {d.get("?state=odd"), d.get("operation"), d.post("change", url.Values{})},
		403: {stranger.get(""), stranger.get("style.css")},
		404: {d.get("nothing"), d.get(addressOf(numbered(99)))},
		405: {d.get("change"), d.post("", nil), d.post("style.css", nil)},
		409: {d.post("change", change)},
		413: {d.post("change", url.Values{"body": {strings.Repeat("a", 5<<20)}})},
		422: {d.post("search", nil)},
		503: {broken.get("")},
	} {
		for _, got := range got {
			require.Equal(t, want, got.status, got.page)
			policy := "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
			require.Equal(t, policy, got.header.Get("Content-Security-Policy"))
			require.Equal(t, "nosniff", got.header.Get("X-Content-Type-Options"))
			require.Equal(t, "same-origin", got.header.Get("Referrer-Policy"))
			require.Equal(t, "no-store", got.header.Get("Cache-Control"))
			require.Equal(t, "same-origin", got.header.Get("Cross-Origin-Opener-Policy"))
			require.Equal(t, "same-origin", got.header.Get("Cross-Origin-Resource-Policy"))
			if got.page != "" && !strings.HasPrefix(got.page, ":root") {
				require.Equal(t, "text/html; charset=utf-8", got.header.Get("Content-Type"))
				require.Contains(t, got.page, `<html lang="en">`)
				require.Regexp(t, `<title>[^<]+ · Idempotency console</title>`, got.page)
				require.Equal(t, 1, strings.Count(got.page, "<h1>"))
			}
		}
	}
}

// The pages need no script, and have no place for one.
func TestPagesHaveNoScript(t *testing.T) {
	t.Parallel()
	store := newStore()
	abandon(t, store, order)
	d := newDesk(t, store)
	for _, address := range []string{"", addressOf(order)} {
		page := d.get(address).page
		require.NotRegexp(t, `(?i)<script|\son\w+=|style=|javascript:|<style|<base|<iframe|https?:`, page)
	}
}

func TestOtherMethodsAreRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t, newStore())
	for address, allowed := range map[string]string{
		"": "GET, HEAD", "operation": "GET, HEAD", "style.css": "GET, HEAD", "search": "POST", "change": "POST",
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			r, err := http.NewRequestWithContext(t.Context(), method, d.url+address, nil)
			require.NoError(t, err)
			got := d.do(r)
			if strings.Contains(allowed, method) {
				require.NotEqual(t, http.StatusMethodNotAllowed, got.status, "%s %s", method, address)
				continue
			}
			require.Equal(t, http.StatusMethodNotAllowed, got.status, "%s %s", method, address)
			require.Equal(t, allowed, got.header.Get("Allow"))
		}
	}
}

// A form counts only if the console itself has sent it to the browser.
func TestFormsOfOtherSitesAreRefused(t *testing.T) {
	t.Parallel()
	for name, site := range map[string]map[string]string{
		"cross-site":          {"Sec-Fetch-Site": "cross-site"},
		"same site":           {"Sec-Fetch-Site": "same-site"},
		"origin":              {"Origin": "https://evil.example"},
		"opaque origin":       {"Origin": "null"},
		"another port":        {"Origin": "http://127.0.0.1:1"},
		"says it is ours too": {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Referer": "http://127.0.0.1/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := newStore()
			abandon(t, store, order)
			d := newDesk(t, store)
			page := d.get(addressOf(order)).page
			for _, button := range []string{"answer", "tombstone", "not-happened", "forget"} {
				form := d.form(page, button, "reason", "because")
				form.Set("status", "201")
				r := d.request("change", form)
				r.Header.Del("Sec-Fetch-Site")
				for field, value := range site {
					r.Header.Set(field, value)
				}
				require.Equal(t, http.StatusForbidden, d.do(r).status)
			}
			require.Equal(t, idempotency.StateAbandoned, inspect(t, store, order).State)
			require.Empty(t, d.events)
		})
	}
}

// Links and redirects lead to the right places, wherever the console is mounted, and whatever is in front of it.
func TestMountedAnywhere(t *testing.T) {
	t.Parallel()
	pages, err := console.New(newStoreWith(t, order), console.Options{Operator: bob})
	require.NoError(t, err)
	serve := func(t *testing.T, h http.Handler) string {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	mounted := func(pattern string, h http.Handler) http.Handler {
		mux := http.NewServeMux()
		mux.Handle(pattern, h)
		return mux
	}
	for name, open := range map[string]func(t *testing.T) string{
		"root": func(t *testing.T) string { return serve(t, pages) + "/" },
		"path": func(t *testing.T) string { return serve(t, mounted("/a/b/", pages)) + "/a/b/" },
		"stripped": func(t *testing.T) string {
			return serve(t, mounted("/a/b/", http.StripPrefix("/a/b", pages))) + "/a/b/"
		},
		"no slash": func(t *testing.T) string { return serve(t, mounted("/a/b/", pages)) + "/a/b" },
		"behind a proxy with a prefix": func(t *testing.T) string {
			inner, err := url.Parse(serve(t, mounted("/in/", pages)))
			require.NoError(t, err)
			inner.Path = "/in"
			return serve(t, mounted("/ops/", http.StripPrefix("/ops", &httputil.ReverseProxy{
				Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(inner) },
			}))) + "/ops/"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &desk{t: t, url: open(t), client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
			front := d.get("")
			require.Equal(t, http.StatusOK, front.status)
			d.url = front.url.String()
			require.True(t, strings.HasSuffix(d.url, "/"))
			require.Equal(t, http.StatusOK, d.get("style.css").status)
			links := front.links(`operation[^"]*`)
			require.Len(t, links, 1)
			require.Equal(t, addressOf(order), links[0])
			require.Contains(t, d.get(links[0]).page, order.OperationID().String())
			require.Equal(t, []string{"?state=all"}, front.links(`\?state=all`))
			require.Equal(t, http.StatusOK, d.get("?state=all").status)

			found := d.post("search", url.Values{"operation": {order.OperationID().String()}})
			require.Equal(t, d.url+addressOf(order), found.url.String())
			require.Equal(t, http.StatusOK, found.status)
			require.Equal(t, []string{"./", "./"}, append(found.links(`\./`), d.get("nothing").links(`\./`)...))
		})
	}
}

func newStoreWith(t *testing.T, keys ...idempotency.Key) *idempotency.MemoryStore {
	store := newStore()
	for _, key := range keys {
		abandon(t, store, key)
	}
	return store
}

// What belongs to users is shown to whom Options.Show shows it, and to nobody by default.
func TestWhatBelongsToUsers(t *testing.T) {
	t.Parallel()
	secret := idempotency.Key{User: "user-4711", Endpoint: "POST /salaries", ID: "key-4711"}
	store := newStoreWith(t, secret)
	answered := idempotency.Key{User: "user-4711", Endpoint: "POST /salaries", ID: "key-4712"}
	resp := receipt
	resp.Header, resp.Trailer, resp.Body = "X-Seen: header-4711\n", "X-Sum: trailer-4711\n", []byte("body-4711")
	complete(t, store, answered, resp)
	theirs := []string{"user-4711", "/salaries", "key-471", "header-4711", "trailer-4711", "body-4711"}
	read := func(show func(*http.Request) bool) string {
		d := newDesk(t, store, func(o *console.Options) { o.Show = show })
		return d.get("").text() + d.get("?state=all").text() + d.get(addressOf(secret)).text() + d.get(addressOf(answered)).text()
	}
	for name, show := range map[string]func(*http.Request) bool{"default": nil, "no": func(*http.Request) bool { return false }} {
		text := read(show)
		for _, part := range theirs {
			require.NotContains(t, text, part, name)
		}
		require.Contains(t, text, "201 Created")
		require.Contains(t, text, "It has a header of 20 B, and a body of 9 B.")
		require.Contains(t, text, "payment pay_1", "a note is for operators")
		require.Contains(t, text, secret.OperationID().String())
	}
	text := read(everybody)
	for _, part := range theirs {
		require.Contains(t, text, part)
	}
}

// What a store says when it fails is for the log.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	for name, failing := range map[string]struct {
		store *troubled
		ask   func(*desk) shown
	}{
		"list":  {&troubled{list: errDown}, func(d *desk) shown { return d.get("") }},
		"story": {&troubled{inspect: errDown}, func(d *desk) shown { return d.get(addressOf(order)) }},
		"search": {&troubled{inspect: errDown}, func(d *desk) shown {
			return d.post("search", url.Values{"operation": {order.OperationID().String()}})
		}},
		"change": {&troubled{change: errDown}, func(d *desk) shown {
			return d.post("change", d.form(d.get(addressOf(order)).page, "forget", "reason", "because"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failing.store.MemoryStore = store
			d := newDesk(t, failing.store)
			got := failing.ask(d)
			require.Equal(t, http.StatusServiceUnavailable, got.status)
			require.NotContains(t, got.page, "10.0.0.7")
			require.Contains(t, d.logged(), "10.0.0.7")
		})
	}
}

// What a store cannot do is said, and the rest goes on.
func TestStoreThatCannot(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	d := newDesk(t, &troubled{MemoryStore: store, list: fmt.Errorf("no users: %w", errors.ErrUnsupported)})
	got := d.get("?user=alice&state=all")
	require.Equal(t, http.StatusNotImplemented, got.status)
	require.Contains(t, got.text(), "This store cannot list these operations.")
	require.Contains(t, got.page, `action="search"`)
	require.Equal(t, http.StatusOK, d.get(addressOf(order)).status)
	d = newDesk(t, &troubled{MemoryStore: store, change: errors.ErrUnsupported}) // a wrapper, in front of one that cannot
	got = d.post("change", d.form(d.get(addressOf(order)).page, "not-happened", "reason", "because"))
	require.Equal(t, http.StatusNotImplemented, got.status)
	d = newDesk(t, &troubled{MemoryStore: store, inspect: errors.ErrUnsupported})
	got = d.get(addressOf(order))
	require.Equal(t, http.StatusNotImplemented, got.status)
	require.Contains(t, got.text(), "This store cannot do that.")
}

// A store that is no Resolver is looked at, and its records may be forgotten.
func TestStoreThatIsNoResolver(t *testing.T) {
	t.Parallel()
	store := newStoreWith(t, order)
	complete(t, store, numbered(2), receipt)
	d := newDesk(t, struct{ idempotency.Inspector }{store})
	require.Contains(t, d.get(addressOf(numbered(2))).text(), `{"receipt":"R-17"}`)
	require.Equal(t, http.StatusNotFound, d.get(addressOf(numbered(3))).status)
	got := d.get(addressOf(order))
	require.NotContains(t, got.page, "End the operation")
	form := d.form(got.page, "forget", "reason", "because")
	form.Set("do", "not-happened")
	got = d.post("change", form)
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.text(), "this store cannot resolve operations")
	form.Set("do", "forget")
	require.Contains(t, d.post("change", form).text(), "No record")
	_, err := store.Inspect(t.Context(), order)
	require.ErrorIs(t, err, idempotency.ErrNoRecord)
}
