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
	own := func(values ...string) http.Header { return http.Header{"Idempotency-Key": values} }
	tests := []struct {
		name      string
		method    string
		transport client.Transport
		header    http.Header
		context   string
		want      []string
		sent      int // where each answer is 503
	}{
		{name: "POST", method: "POST", want: []string{random}, sent: 4},
		{name: "PATCH", method: "PATCH", want: []string{random}, sent: 4},
		{name: "GET", method: "GET", sent: 1},
		{name: "PUT", method: "PUT", sent: 1},
		{name: "DELETE", method: "DELETE", sent: 1},
		{name: "of the context", method: "POST", context: "k-1", want: []string{"k-1"}, sent: 4},
		{name: "of the context, GET", method: "GET", context: "k-1", sent: 1},
		{name: "of the context, needs quotes", method: "POST", context: `a,"b\`, want: []string{`"a,\"b\\"`}, sent: 4},
		{name: "of the context, looks quoted", method: "POST", context: `"a"`, want: []string{`"\"a\""`}, sent: 4},
		{name: "quoted", method: "POST", context: "k-1", transport: client.Transport{Quoted: true},
			want: []string{`"k-1"`}, sent: 4},
		{name: "the caller's", method: "POST", header: own("mine"), context: "k-1", want: []string{"mine"}, sent: 4},
		{name: "the caller's, kept as it is", method: "POST", header: own("mine", "two"),
			want: []string{"mine", "two"}, sent: 4},
		{name: "the caller's, PUT", method: "PUT", header: own("mine"), want: []string{"mine"}, sent: 4},
		{name: "none by the convention of net/http", method: "POST", header: own(), context: "k-1", sent: 1},
		{name: "set to nothing", method: "POST", header: own(""), want: []string{""}, sent: 1},
		{name: "unnamed host", method: "POST", transport: unnamed, sent: 1},
		{name: "unnamed host, of the context", method: "POST", transport: unnamed, context: "k-1",
			want: []string{"k-1"}, sent: 1},
		{name: "unnamed host, of the context, GET", method: "GET", transport: unnamed, context: "k-1", sent: 1},
		{name: "unnamed host, the caller's", method: "PUT", transport: unnamed, header: own("mine"),
			want: []string{"mine"}, sent: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got arrivals
			server := testservice.Listen(t, got.record(func(w http.ResponseWriter, _ *http.Request, _ int) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}), false)
			ctx := t.Context()
			if tt.context != "" {
				ctx = client.WithKey(ctx, tt.context)
			}
			r := newPost(t, server.URL, "order 1").WithContext(ctx)
			r.Method, r.Header["Idempotency-Key"] = tt.method, tt.header["Idempotency-Key"]
			if tt.header == nil {
				delete(r.Header, "Idempotency-Key")
			}
			before := r.Header.Clone()
			transport := impatient(server)
			transport.Quoted = tt.transport.Quoted
			if tt.transport.Hosts != nil {
				transport.Hosts = tt.transport.Hosts
			}

			require.Equal(t, 503, do(transport, r).Status)
			require.Equal(t, before, r.Header, "the caller's request was changed")
			require.Len(t, got.list(), tt.sent)
			for i, a := range got.list() {
				if i == 0 && len(tt.want) == 1 && tt.want[0] == random {
					require.Len(t, a.keys, 1)
					require.NoError(t, idempotency.ValidateUUID(a.keys[0]))
					tt.want = a.keys
				}
				require.Equal(t, tt.want, a.keys)
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
		return replying(200, nil)(sent)
	})
	_, err := transport.RoundTrip(r)
	require.NoError(t, err)
	require.Nil(t, r.Header)
}

func TestTransportMakesANewKeyForEachRequest(t *testing.T) {
	t.Parallel()
	var got arrivals
	server := testservice.Listen(t, got.record(func(http.ResponseWriter, *http.Request, int) {}), false)
	r := newPost(t, server.URL, "order 1")
	require.NoError(t, do(impatient(server), r).Err)
	require.NoError(t, do(impatient(server), newPost(t, server.URL, "order 1")).Err)
	require.NotEqual(t, got.list()[0].keys, got.list()[1].keys)
}

func TestTransportHeaderOfAnotherName(t *testing.T) {
	t.Parallel()
	svc := testservice.Setup{Opts: idempotency.Options{Headers: []string{"X-Request-Key"}, Required: true}}.Serve(t, testservice.Echo)
	transport := impatient(svc.Server)
	transport.Header = "x-request-key"
	require.Equal(t, 201, do(transport, newPost(t, svc.Server.URL, "order 1")).Status)
}

func TestTransportRefusesAnInvalidKeyOfTheContext(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a b", "é", strings.Repeat("k", 256)} {
		b := &requestBody{Reader: strings.NewReader("order 1")}
		r := newPost(t, "http://service.test", "").WithContext(client.WithKey(t.Context(), key))
		r.Body = b
		a := do(&client.Transport{Hosts: []string{"service.test"}, Base: baseFunc(func(*http.Request) (*http.Response, error) {
			panic("sent")
		})}, r)
		require.ErrorIs(t, a.Err, client.ErrKeyInvalid, "key %q", key)
		require.EqualValues(t, 1, b.closed.Load())
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
	keys := []string{strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat(`\`, 255), strings.Repeat(`"`, 255), strings.Repeat(`"`, 256), `""`, `"k-1"`, `a\"b`, "a,b;c"}
	for c := range 256 {
		keys = append(keys, string([]byte{byte(c)}), string([]byte{'a', byte(c), 'b'}), string([]byte{'\\', byte(c)}))
	}
	for _, key := range keys {
		r := newPost(t, "http://service.test", "")
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
