package main_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each request has a line, which shows no key, user or query.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	upstream := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/half":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			fallthrough
		case "/broken":
			panic(http.ErrAbortHandler)
		}
		created(w, r)
	})
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-access-log")...)
	type line struct {
		Msg, Peer, Method, Host, Path, Proto, Outcome string
		Status, Bytes                                 int
		Complete                                      bool
		Seconds                                       float64
	}
	lines := func() (all []line) {
		for text := range strings.Lines(p.printed()) {
			var l line
			require.NoError(t, json.Unmarshal([]byte(text), &l), text)
			require.NotContains(t, text, "alice")
			require.NotContains(t, text, "secret")
			all = append(all, l)
		}
		return all
	}
	for i, test := range []struct {
		path    string
		edits   []request
		status  int
		outcome string
	}{
		{"/things/a%2Fb?token=secret", []request{as("alice"), keyed("secret")}, 201, "executed"},
		{"/things/a%2Fb?token=secret", []request{as("alice"), keyed("secret")}, 201, "replayed"},
		{"/things", []request{method("GET")}, 201, ""},
		{"/things", []request{keyed("secret")}, 401, "rejected"},
		{"/broken", []request{as("alice"), keyed("secret-2")}, 502, "abandoned"},
		{"/half", []request{method("GET")}, 200, ""},
	} {
		got := p.post(test.path, "x", test.edits...)
		eventually(t, "a line", func() bool { return strings.Count(p.printed(), "\n") > i })
		told := lines()[i]
		require.Equal(t, got.err == nil, told.Complete, got)
		require.Equal(t, test.outcome, told.Outcome)
		require.Equal(t, test.status, told.Status)
		if told.Complete {
			require.Equal(t, got.status, told.Status)
			require.Equal(t, len(got.body), told.Bytes)
		}
		require.Equal(t, strings.Split(test.path, "?")[0], told.Path)
		require.Equal(t, "127.0.0.1", told.Peer)
		require.Equal(t, p.address(), told.Host)
		require.Equal(t, "HTTP/1.1", told.Proto)
		require.Positive(t, told.Seconds)
	}
}

// What needs more than a ResponseWriter works with a log, too.
func TestAccessLogOfAWebSocket(t *testing.T) {
	t.Parallel()
	upstream, _ := switching(t)
	p := start(t, upstream.URL, append(asHeader, "-store", "memory:", "-access-log")...)
	c := p.websocket(t)
	c.echoes(t, "hello")
	require.NoError(t, c.Close())
	eventually(t, "a line", func() bool { return strings.Contains(p.printed(), `"status":101`) })
}
