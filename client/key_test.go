package client_test

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/client"
	"github.com/idempotency-go/idempotency/proof/testservice"
)

func TestTransportKey(t *testing.T) {
	t.Parallel()
	const random = "a random UUID"
	unnamed := client.Transport{Hosts: []string{"service.test"}}
	callerKeys := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	tests := []struct {
		name         string
		method       string
		transport    client.Transport
		callerHeader http.Header
		contextKey   string
		wantKeys     []string
		wantAttempts int // if each answer is 503
	}{
		{name: "POST", method: "POST", wantKeys: []string{random}, wantAttempts: 4},
		{name: "PATCH", method: "PATCH", wantKeys: []string{random}, wantAttempts: 4},
		{name: "GET", method: "GET", wantAttempts: 1},
		{name: "PUT", method: "PUT", wantAttempts: 1},
		{name: "DELETE", method: "DELETE", wantAttempts: 1},
		{name: "key of the context", method: "POST", contextKey: "k-1", wantKeys: []string{"k-1"}, wantAttempts: 4},
		{name: "key of the context, GET", method: "GET", contextKey: "k-1", wantAttempts: 1},
		{name: "key of the context, needs quotes", method: "POST", contextKey: `a,"b\`, wantKeys: []string{`"a,\"b\\"`},
			wantAttempts: 4},
		{name: "key of the context, looks quoted", method: "POST", contextKey: `"a"`, wantKeys: []string{`"\"a\""`}, wantAttempts: 4},
		{name: "key of the context, quoted", method: "POST", contextKey: "k-1", transport: client.Transport{Quoted: true},
			wantKeys: []string{`"k-1"`}, wantAttempts: 4},
		{name: "header of the caller", method: "POST", callerHeader: callerKeys("mine"), contextKey: "k-1",
			wantKeys: []string{"mine"}, wantAttempts: 4},
		{name: "header of the caller with two values", method: "POST", callerHeader: callerKeys("mine", "two"),
			wantKeys: []string{"mine", "two"}, wantAttempts: 4},
		{name: "header of the caller, PUT", method: "PUT", callerHeader: callerKeys("mine"), wantKeys: []string{"mine"},
			wantAttempts: 4},
		{name: "header of the caller without a value", method: "POST", callerHeader: callerKeys(), contextKey: "k-1", wantAttempts: 1},
		{name: "header of the caller with an empty value", method: "POST", callerHeader: callerKeys(""),
			wantKeys: []string{""}, wantAttempts: 1},
		{name: "unnamed host", method: "POST", transport: unnamed, wantAttempts: 1},
		{name: "unnamed host, key of the context", method: "POST", transport: unnamed, contextKey: "k-1",
			wantKeys: []string{"k-1"}, wantAttempts: 1},
		{name: "unnamed host, key of the context, GET", method: "GET", transport: unnamed, contextKey: "k-1", wantAttempts: 1},
		{name: "unnamed host, header of the caller", method: "PUT", transport: unnamed, callerHeader: callerKeys("mine"),
			wantKeys: []string{"mine"}, wantAttempts: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.recordRequests(func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}), false)
			ctx := t.Context()
			if tt.contextKey != "" {
				ctx = client.WithKey(ctx, tt.contextKey)
			}
			r := newPostRequest(t, server.URL, "order 1").WithContext(ctx)
			r.Method, r.Header["Idempotency-Key"] = tt.method, tt.callerHeader["Idempotency-Key"]
			if tt.callerHeader == nil {
				delete(r.Header, "Idempotency-Key")
			}
			before := r.Header.Clone()
			transport := newImpatientTransport(server)
			transport.Quoted = tt.transport.Quoted
			if tt.transport.Hosts != nil {
				transport.Hosts = tt.transport.Hosts
			}

			require.Equal(t, 503, sendRequest(transport, r).Status)
			require.Equal(t, before, r.Header, "the caller's request was changed")
			require.Len(t, got.list(), tt.wantAttempts)
			for i, a := range got.list() {
				if i == 0 && len(tt.wantKeys) == 1 && tt.wantKeys[0] == random {
					require.Len(t, a.keys, 1)
					require.NoError(t, idempotency.ValidateUUID(a.keys[0]))
					tt.wantKeys = a.keys
				}
				require.Equal(t, tt.wantKeys, a.keys)
			}
		})
	}
}

func TestTransportTakesARequestWithoutAHeader(t *testing.T) {
	t.Parallel()
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{Scheme: "http", Host: "service.test"}}
	transport := client.Transport{Hosts: []string{"service.test"}}
	transport.Base = baseFunc(func(sent *http.Request) (*http.Response, error) {
		require.NoError(t, idempotency.ValidateUUID(sent.Header.Get("Idempotency-Key")))
		return replyWith(200, nil)(sent)
	})
	_, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.Nil(t, r.Header)
}

func TestTransportMakesANewKeyForEachRequest(t *testing.T) {
	t.Parallel()
	var got arrivals
	server := testservice.Listen(t, got.recordRequests(func(http.ResponseWriter, *http.Request, int) {}), false)
	r := newPostRequest(t, server.URL, "order 1")
	require.NoError(t, sendRequest(newImpatientTransport(server), r).Err)
	require.NoError(t, sendRequest(newImpatientTransport(server), newPostRequest(t, server.URL, "order 1")).Err)
	require.NotEqual(t, got.list()[0].keys, got.list()[1].keys)
}

func TestTransportHeaderOfAnotherName(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{Headers: []string{"X-Request-Key"}, Required: true}}.Serve(t, testservice.Echo)
	transport := newImpatientTransport(svc.Server)
	transport.Header = "x-request-key"
	require.Equal(t, 201, sendRequest(transport, newPostRequest(t, svc.Server.URL, "order 1")).Status)
}

func TestTransportRefusesAnInvalidKeyOfTheContext(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a b", "é", strings.Repeat("k", 256)} {
		b := &requestBody{Reader: strings.NewReader("order 1")}
		r := newPostRequest(t, "http://service.test", "").WithContext(client.WithKey(t.Context(), key))
		r.Body = b
		a := sendRequest(&client.Transport{Hosts: []string{"service.test"}, Base: baseFunc(func(*http.Request) (*http.Response, error) {
			panic("sent")
		})}, r)
		require.ErrorIs(t, a.Err, client.ErrKeyInvalid, "key %q", key)
		require.EqualValues(t, 1, b.closeCalls.Load())
	}
}

// The server accepts every key that the client sends, and reads the same key from the header.
func TestClientAndServerAgreeOnKeys(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection lost")
	sent := ""
	base := baseFunc(func(r *http.Request) (*http.Response, error) {
		sent = r.Header.Get("Idempotency-Key")
		return nil, lost
	})
	transport, quoting := client.Transport{Base: base}, client.Transport{Base: base, Quoted: true}
	keys := []string{
		strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat(`\`, 255), strings.Repeat(`"`, 255),
		strings.Repeat(`"`, 256), `""`, `"k-1"`, `a\"b`, "a,b;c",
	}
	for c := range 256 {
		keys = append(keys, string([]byte{byte(c)}), string([]byte{'a', byte(c), 'b'}), string([]byte{'\\', byte(c)}))
	}
	for _, key := range keys {
		r := newPostRequest(t, "http://service.test", "")
		_, err := transport.RoundTrip(r.WithContext(client.WithKey(t.Context(), key)))
		if errors.Is(err, client.ErrKeyInvalid) {
			_, err := idempotency.ParseKey([]string{strconv.Quote(key)})
			require.Error(t, err, "%q", key)
		} else {
			read, err := idempotency.ParseKey([]string{sent})
			require.NoError(t, err, "%q", key)
			require.Equal(t, key, read)
			_, _ = quoting.RoundTrip(r.WithContext(client.WithKey(t.Context(), key)))
			read, err = idempotency.ParseKey([]string{sent})
			require.NoError(t, err, "%q", key)
			require.Equal(t, key, read)
		}
		for _, value := range []string{key, `"` + key + `"`, `"` + key, strconv.Quote(key), "`" + key + "`", "'" + key + "'"} {
			r.Header["Idempotency-Key"] = []string{value}
			_, err := transport.RoundTrip(r)
			failure, ok := errors.AsType[*client.Error](err)
			require.True(t, ok)
			read, _ := idempotency.ParseKey([]string{value})
			require.Equal(t, read, failure.Key, "%q", value)
		}
	}
}
