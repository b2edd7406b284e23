package main_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The access log has a line for each request. The line contains no key, no user and no query.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	upstream := startService(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/half":
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "half")
			_ = http.NewResponseController(w).Flush()
			fallthrough
		case "/broken":
			panic(http.ErrAbortHandler)
		}
		answerCreated(w, r)
	})
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-access-log")...)
	type line struct {
		Msg, Peer, Method, Host, Path, Proto, Outcome, Operation, Refusal string
		Status, Bytes, Attempt                                            int
		Complete                                                          bool
		Seconds                                                           float64
	}
	lines := func() (all []line) {
		for text := range strings.Lines(p.printedLines()) {
			var l line
			require.NoError(t, json.Unmarshal([]byte(text), &l), text)
			require.NotContains(t, text, "alice")
			require.NotContains(t, text, "secret")
			all = append(all, l)
		}
		return all
	}
	for i, test := range []struct {
		path        string
		changes     []requestOption
		wantStatus  int
		wantOutcome string
	}{
		{"/things/a%2Fb?token=secret", []requestOption{withUser("alice"), withKey("secret")}, 201, "executed"},
		{"/things/a%2Fb?token=secret", []requestOption{withUser("alice"), withKey("secret")}, 201, "replayed"},
		{"/things", []requestOption{withMethod("GET")}, 201, ""},
		{"/things", []requestOption{withKey("secret")}, 401, "rejected"},
		{"/broken", []requestOption{withUser("alice"), withKey("secret-2")}, 502, "abandoned"},
		{"/half", []requestOption{withMethod("GET")}, 200, ""},
	} {
		got := p.post(test.path, "x", test.changes...)
		requireEventually(t, "a line", func() bool { return strings.Count(p.printedLines(), "\n") > i })
		logged := lines()[i]
		require.Equal(t, got.err == nil, logged.Complete, got)
		require.Equal(t, test.wantOutcome, logged.Outcome)
		if logged.Outcome == "" || logged.Outcome == "rejected" {
			require.Zero(t, logged.Attempt)
			require.Empty(t, logged.Operation)
		} else {
			require.Equal(t, 1, logged.Attempt)
			require.Len(t, logged.Operation, 36, "a UUID")
		}
		require.Equal(t, logged.Outcome == "rejected", logged.Refusal == "user-unknown")
		require.Equal(t, test.wantStatus, logged.Status)
		if logged.Complete {
			require.Equal(t, got.status, logged.Status)
			require.Equal(t, len(got.body), logged.Bytes)
		}
		require.Equal(t, strings.Split(test.path, "?")[0], logged.Path)
		require.Equal(t, "127.0.0.1", logged.Peer)
		require.Equal(t, p.address(), logged.Host)
		require.Equal(t, "HTTP/1.1", logged.Proto)
		require.Positive(t, logged.Seconds)
	}
}

// A WebSocket needs more than a ResponseWriter, and works with the access log, too.
func TestAccessLogOfAWebSocket(t *testing.T) {
	t.Parallel()
	upstream, _ := startSwitchingService(t)
	p := startProxy(t, upstream.URL, append(userHeaderFlags, "-store", "memory:", "-access-log")...)
	c := p.openWebSocket(t)
	c.requireEcho(t, "hello")
	require.NoError(t, c.Close())
	requireEventually(t, "a line", func() bool { return strings.Contains(p.printedLines(), `"status":101`) })
}
