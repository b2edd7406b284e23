package webhook_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/proof/testservice"
	"github.com/idempotency-go/idempotency/webhook"
)

// privateKey belongs to the public key of the vector "Standard Webhooks v1a".
const privateKey = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="

// signed returns the header of a delivery that its sender signs now. Stripe has the ID in the body instead.
func signed(name, secret, id, body string) http.Header {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	inBase64 := func(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
	h := http.Header{}
	switch name {
	case "Standard Webhooks", "Svix":
		prefix := map[string]string{"Standard Webhooks": "webhook-", "Svix": "svix-"}[name]
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		h.Set(prefix+"id", id)
		h.Set(prefix+"timestamp", now)
		h.Set(prefix+"signature", "v1,"+inBase64(sign(string(key), id+"."+now+"."+body)))
	case "Standard Webhooks v1a":
		key, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(privateKey, "whsk_"))
		if secret != vectors[name].secret {
			key = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)) // as somebody else signs
		}
		h.Set("webhook-id", id)
		h.Set("webhook-timestamp", now)
		h.Set("webhook-signature", "v1a,"+inBase64(ed25519.Sign(key, []byte(id+"."+now+"."+body))))
	case "Stripe":
		h.Set("Stripe-Signature", "t="+now+",v1="+hex.EncodeToString(sign(secret, now+"."+body)))
	case "GitHub":
		h.Set("X-GitHub-Delivery", id)
		h.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(sign(secret, body)))
	case "Shopify":
		h.Set("Shopify-Webhook-Id", id)
		h.Set("Shopify-Hmac-Sha256", inBase64(sign(secret, body)))
	case "Shopify with X-":
		h.Set("X-Shopify-Webhook-Id", id)
		h.Set("X-Shopify-Hmac-Sha256", inBase64(sign(secret, body)))
	}
	return h
}

// endpoint is a Receiver on a real server that records the calls of its handler and its store.
type endpoint struct {
	name, secret, url string
	store             *testservice.SpyStore
	journal           testservice.Journal
	runs              atomic.Int64
	read              atomic.Int64 // bytes of bodies
}

func newEndpoint(t *testing.T, name string, opts idempotency.Options, handler http.HandlerFunc) *endpoint {
	t.Helper()
	e := &endpoint{name: name, secret: vectors[name].secret, store: testservice.NewSpyStore()}
	opts.Observer, opts.Logger = e.journal.Observe, slog.New(slog.DiscardHandler)
	hooks, err := webhook.New(e.store, vectors[name].sender(e.secret), opts)
	require.NoError(t, err)
	testservice.ShutdownAtEnd(t, hooks)
	guarded := hooks.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.runs.Add(1)
		handler(w, r)
	}))
	server := testservice.Listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counted := r.WithContext(r.Context()) // because net/http looks at the body of its own request
		counted.Body = countedBody{r.Body, &e.read}
		guarded.ServeHTTP(w, counted)
		r.MultipartForm = counted.MultipartForm
	}), false)
	e.url = server.URL
	return e
}

// countedBody counts the bytes that the Receiver has read.
type countedBody struct {
	io.ReadCloser
	read *atomic.Int64
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	return n, err
}

// deliver signs and sends a delivery. A delivery of Stripe has its ID in the body.
func (e *endpoint) deliver(t *testing.T, id, body string) testservice.Answer {
	t.Helper()
	return e.send(t, "POST", signed(e.name, e.secret, id, body), body)
}

func (e *endpoint) send(t *testing.T, method string, h http.Header, body string) testservice.Answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, e.url, strings.NewReader(body))
	require.NoError(t, err)
	r.Header = h
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return testservice.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(answer)}
}

// A repeated delivery does not run again, even if the sender writes the event differently.
func TestDeliveryRunsOnce(t *testing.T) {
	t.Parallel()
	for name := range vectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t, name, idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				op, _ := idempotency.FromContext(r.Context())
				_, _ = fmt.Fprint(w, op.Key.ID, " ", string(body))
			})
			first := e.deliver(t, "evt_1", `{"id":"evt_1","pending_webhooks":2}`)
			require.Equal(t, http.StatusOK, first.Status, first.Body)
			require.Equal(t, `evt_1 {"id":"evt_1","pending_webhooks":2}`, first.Body)
			again := e.deliver(t, "evt_1", `{"id":"evt_1","pending_webhooks":1}`)
			require.True(t, again.Replayed())
			require.Equal(t, first.Body, again.Body)
			require.False(t, e.deliver(t, "evt_2", `{"id":"evt_2"}`).Replayed())
			require.EqualValues(t, 2, e.runs.Load())
		})
	}
}

// A failed delivery runs again, whatever its status was.
func TestFailureIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, status := range []int{302, 400, 404, 409, 410, 422, 500} {
		broken := true
		e := newEndpoint(t, "GitHub", idempotency.Options{}, func(w http.ResponseWriter, r *http.Request) {
			if broken {
				w.WriteHeader(status)
			}
			broken = false
		})
		require.Equal(t, status, e.deliver(t, "1", "").Status)
		require.Equal(t, http.StatusOK, e.deliver(t, "1", "").Status)
		require.True(t, e.deliver(t, "1", "").Replayed())
		require.EqualValues(t, 2, e.runs.Load())
	}
}

// All refusals have statuses after which senders try again.
func TestRefusals(t *testing.T) {
	t.Parallel()
	working, finish := make(chan struct{}), make(chan struct{})
	goOn := sync.OnceFunc(func() { close(finish) })
	for name, test := range map[string]struct {
		opts    idempotency.Options
		handler http.HandlerFunc // of the first attempt
		status  int
		after   string
		runs    int64
	}{
		"in progress": {handler: func(http.ResponseWriter, *http.Request) {
			close(working)
			<-finish
		}, status: 503, after: "1", runs: 1},
		"outcome unknown": {opts: idempotency.Options{Abandoned: idempotency.Refuse, Lease: time.Millisecond}, status: 503, runs: 1,
			handler: func(w http.ResponseWriter, r *http.Request) { idempotency.Decide(r.Context(), idempotency.Unknown) }},
		"shown once": {status: 202, runs: 1, handler: func(w http.ResponseWriter, r *http.Request) {
			idempotency.Decide(r.Context(), idempotency.Tombstone)
			w.WriteHeader(http.StatusAccepted)
		}},
		"too large to keep": {opts: idempotency.Options{MaxResponse: 3}, status: 200, runs: 1,
			handler: func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "large") }},
		"a failure that is shown once": {status: 503, runs: 1, handler: func(w http.ResponseWriter, r *http.Request) {
			idempotency.Decide(r.Context(), idempotency.Tombstone)
			w.WriteHeader(http.StatusBadRequest)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndpoint(t, "GitHub", test.opts, test.handler)
			first := make(chan struct{})
			go func() {
				defer close(first)
				_ = e.deliver(t, "1", "")
			}()
			if name == "in progress" {
				t.Cleanup(func() { // also if the test fails, or its server would not close
					goOn()
					<-first
				})
				<-working
			} else {
				<-first
			}
			again := e.deliver(t, "1", "")
			for deadline := time.Now().Add(time.Minute); again.Status != test.status || again.Header.Get("Retry-After") != test.after; {
				require.True(t, time.Now().Before(deadline), "%d: %s", again.Status, again.Body)
				again = e.deliver(t, "1", "") // until the lease has lapsed; if that was before the handler began, it begins again
			}
			require.Equal(t, test.runs, e.runs.Load())
			if name == "in progress" {
				goOn()
				<-first
				require.True(t, e.deliver(t, "1", "").Replayed())
			}
		})
	}
}

// If the store is down, the sender tries later.
func TestStoreIsDown(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, "Stripe", idempotency.Options{}, testservice.Status(200))
	e.store.OnBegin = testservice.Failing(1, testservice.ErrDown)
	down := e.deliver(t, "", `{"id":"evt_1"}`)
	require.Equal(t, http.StatusServiceUnavailable, down.Status)
	require.NotEmpty(t, down.Header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, e.deliver(t, "", `{"id":"evt_1"}`).Status)
}

func TestProblemBase(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, "Stripe", idempotency.Options{ProblemBase: "https://shop.example/problems#"}, testservice.Status(200))
	require.Contains(t, e.deliver(t, "", `{"id":"a b"}`).Body, `"type":"https://shop.example/problems#key-invalid"`)
}

// An unverified delivery is not stored, and does not run.
func TestUnverifiedIsNotStored(t *testing.T) {
	t.Parallel()
	for name := range vectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refused error
			e := newEndpoint(t, name, idempotency.Options{MaxBody: 100, ErrorHandler: func(
				w http.ResponseWriter, r *http.Request, e *idempotency.Error) {
				refused = e
				idempotency.WriteProblem(w, r, e)
			}}, testservice.Status(200))
			const body = `{"id":"evt_1"}`
			forged := e.send(t, "POST", signed(name, other, "evt_1", body), body)
			require.Equal(t, http.StatusUnauthorized, forged.Status)
			require.NotEmpty(t, forged.Header.Get("WWW-Authenticate"))
			require.ErrorIs(t, refused, webhook.ErrSignature)
			require.ErrorIs(t, e.journal.Last(t).Err, webhook.ErrSignature)
			require.Equal(t, idempotency.OutcomeRejected, e.journal.Last(t).Outcome)

			large := strings.Repeat(" ", 101)
			require.Equal(t, http.StatusRequestEntityTooLarge, e.send(t, "POST", signed(name, e.secret, "1", large), large).Status)
			require.ErrorIs(t, refused, idempotency.ErrBodyTooLarge)
			require.Equal(t, http.StatusMethodNotAllowed, e.send(t, "PUT", signed(name, e.secret, "evt_1", body), body).Status)
			for _, id := range []string{"", "a b", strings.Repeat("x", 256)} { // of header, and of body
				if name == "Stripe" {
					require.Equal(t, http.StatusBadRequest, e.deliver(t, "", `{"id":"`+id[:min(len(id), 50)]+` "}`).Status)
				} else {
					require.Equal(t, http.StatusBadRequest, e.deliver(t, id, body).Status, id)
				}
			}
			require.Zero(t, e.store.Begins.Load())
			require.Zero(t, e.runs.Load())
		})
	}
}

// A part of a body is not verified.
func TestBodyBreaksOff(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, "GitHub", idempotency.Options{}, testservice.Status(200))
	conn, err := net.Dial("tcp", strings.TrimPrefix(e.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /hooks HTTP/1.1\r\nHost: hooks\r\nContent-Length: 9\r\n\r\nhalf")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
	require.ErrorIs(t, e.journal.Last(t).Err, idempotency.ErrBodyInvalid)
	require.Zero(t, e.runs.Load())
}

// A signed body without an event has no ID.
func TestStripeBodies(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, "Stripe", idempotency.Options{}, testservice.Status(200))
	for _, body := range []string{"", "{}", "no event", `{"id":17}`, `{"id":null}`, `["evt_1"]`, `{"id":"evt_1"`} {
		require.Equal(t, http.StatusBadRequest, e.deliver(t, "", body).Status, body)
	}
	require.Zero(t, e.runs.Load())
}

// The key of a delivery is its sender and its ID. Senders do not sign the path, so the path is not part of the key. If a
// sender has two endpoints, different names or Options.Endpoint tell their deliveries apart.
func TestKeyIsSenderAndID(t *testing.T) {
	t.Parallel()
	named := func(name string) webhook.Sender {
		sender := webhook.Stripe(vectors["Stripe"].secret)
		sender.Name = name
		return sender
	}
	byPath := idempotency.Options{Endpoint: func(r *http.Request) string { return r.URL.Path }}
	type receiver struct {
		sender webhook.Sender
		opts   idempotency.Options
		path   string
	}
	for name, test := range map[string]struct {
		receivers []receiver
		runs      int64
	}{
		"one path, written in several ways": {[]receiver{
			{sender: named("stripe"), path: "/webhooks/stripe"}, {sender: named("stripe"), path: "/webhooks/%73tripe"},
			{sender: named("stripe"), path: "/%77ebhooks/stripe"}, {sender: named("stripe"), path: "/webhooks/stripe?again"},
		}, 1},
		"two paths of a sender":       {[]receiver{{sender: named("stripe"), path: "/a"}, {sender: named("stripe"), path: "/b"}}, 1},
		"two senders of a path":       {[]receiver{{sender: named("north"), path: "/a"}, {sender: named("south"), path: "/a"}}, 2},
		"two endpoints, if so wanted": {[]receiver{{named("stripe"), byPath, "/a"}, {named("stripe"), byPath, "/b"}}, 2},
	} {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		var runs atomic.Int64
		var key idempotency.Key
		for _, rc := range test.receivers {
			hooks, err := webhook.New(store, rc.sender, rc.opts)
			require.NoError(t, err)
			mux := http.NewServeMux() // as a service has it: it routes by the decoded path
			for _, pattern := range []string{"/webhooks/stripe", "/a", "/b"} {
				mux.Handle("POST "+pattern, hooks.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					runs.Add(1)
					op, _ := idempotency.FromContext(r.Context())
					key = op.Key
				})))
			}
			e := &endpoint{name: "Stripe", secret: vectors["Stripe"].secret, url: testservice.Listen(t, mux, false).URL + rc.path}
			require.Equal(t, http.StatusOK, e.deliver(t, "", `{"id":"evt_1"}`).Status, name)
		}
		require.Equal(t, test.runs, runs.Load(), name)
		require.Equal(t, "evt_1", key.ID, name)
		if test.runs == 1 {
			require.Equal(t, idempotency.Key{User: "stripe", Endpoint: "webhook", ID: "evt_1"}, key, name)
		}
	}
}

// Options take precedence over the defaults of the sender.
func TestOptionsOutrankTheSender(t *testing.T) {
	t.Parallel()
	v := vectors["Stripe"]
	for _, test := range []struct {
		opts  idempotency.Options
		ttl   time.Duration
		again int
	}{
		{idempotency.Options{}, 30 * 24 * time.Hour, 2},
		{idempotency.Options{TTL: time.Hour, Storable: idempotency.DefaultStorable}, time.Hour, 1},
	} {
		store := &ttlStore{Store: idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
		runs := 0
		hooks, err := webhook.New(store, v.sender(v.secret), test.opts)
		require.NoError(t, err)
		server := testservice.Listen(t, hooks.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.WriteHeader(http.StatusNotFound)
		})), false)
		e := &endpoint{name: "Stripe", secret: v.secret, url: server.URL}
		for range 2 {
			require.Equal(t, http.StatusNotFound, e.deliver(t, "", `{"id":"evt_1"}`).Status)
		}
		require.Equal(t, test.ttl, store.ttl)
		require.Equal(t, test.again, runs)
	}
}

// ttlStore records the TTL of the last record.
type ttlStore struct {
	idempotency.Store
	ttl time.Duration
}

func (s *ttlStore) Begin(
	ctx context.Context, key idempotency.Key, req idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	s.ttl = req.TTL
	return s.Store.Begin(ctx, key, req)
}

// New reports all faults together.
func TestFaults(t *testing.T) {
	t.Parallel()
	_, err := webhook.New(nil, webhook.Standard("acme", "whsec_!", ""), idempotency.Options{
		Headers: []string{"Webhook-Id"}, Lease: -1, MaxBody: -1})
	for _, fault := range []string{"secret 1", "secret 2", "Headers, Methods and Fingerprint", "Lease", "MaxBody", "Store is nil"} {
		require.ErrorContains(t, err, fault)
	}
	store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
	verify := func(http.Header, []byte) (string, error) { return "", errors.New("nobody") }
	for _, sender := range []webhook.Sender{
		{}, {Name: "a"}, {Verify: verify}, standard(), webhook.Standard("", other), webhook.Standard(other, other),
		webhook.Standard(vectors["Standard Webhooks v1a"].secret, other), webhook.Stripe(), webhook.GitHub(""), webhook.Shopify("a", ""),
	} {
		_, err := webhook.New(store, sender, idempotency.Options{})
		require.Error(t, err)
	}
	_, err = webhook.New(store, webhook.Sender{Name: "a", Verify: verify}, idempotency.Options{})
	require.NoError(t, err)
}
