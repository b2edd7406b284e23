package fiberidempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gofiber/fiber/v3/middleware/cors"
	recoverer "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gofiber/fiber/v3/middleware/requestid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/fiberidempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

// service is an app whose handler is guarded. runCount counts the runs of the handler.
type service struct {
	*testing.T
	app      *fiber.App
	runCount atomic.Int64
}

// newService returns a service with a memory store and default options.
func newService(t *testing.T, handler fiber.Handler, outside ...any) *service {
	t.Helper()
	return newServiceWith(t, newStore(), idempotency.Options{}, handler, outside...)
}

func newServiceWith(
	t *testing.T, store idempotency.Store, opts idempotency.Options, handler fiber.Handler, outside ...any,
) *service {
	t.Helper()
	s := &service{T: t, app: fiber.New(fiber.Config{DisablePreParseMultipartForm: true})}
	once := guardApp(t, s.app, store, opts)
	for _, middleware := range outside {
		s.app.Use(middleware)
	}
	s.app.All("/charges/:id", once, func(c fiber.Ctx) error {
		s.runCount.Add(1)
		return handler(c)
	})
	return s
}

// guardApp returns the middleware for app.
func guardApp(t *testing.T, app *fiber.App, store idempotency.Store, opts idempotency.Options) fiber.Handler {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(store, func(r *http.Request) (string, error) {
		return userOf(fiberidempotency.Context(r)), nil
	}, opts)
	require.NoError(t, err)
	once, err := fiberidempotency.Middleware(app, idem)
	require.NoError(t, err)
	return once
}

// userOf returns the field User. PeekAll returns memory that fasthttp reuses.
func userOf(c fiber.Ctx) string {
	users := c.Request().Header.PeekAll("User")
	if len(users) == 0 {
		return ""
	}
	return string(users[0])
}

func newStore() idempotency.Store { return idempotency.NewMemoryStore(idempotency.MemoryOptions{}) }

// send sends a request of the user alice. The request has key, unless key is empty, and edit may change the request.
func (s *service) send(key, body string, edit func(*http.Request)) (*http.Response, string) {
	s.Helper()
	r := httptest.NewRequest(http.MethodPost, "/charges/1?now", strings.NewReader(body))
	r.Header.Set("User", "alice")
	r.Header.Set("Content-Type", "text/plain")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	if edit != nil {
		edit(r)
		r.RequestURI = r.URL.RequestURI()
	}
	resp, err := s.app.Test(r, fiber.TestConfig{})
	require.NoError(s, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(s, err)
	return resp, string(answer)
}

// requireRefused requires that the answer is a refusal with problem details.
func (s *service) requireRefused(resp *http.Response, body string, status int, code string) {
	s.Helper()
	require.Equal(s, status, resp.StatusCode, body)
	require.Equal(s, "application/problem+json", resp.Header.Get("Content-Type"))
	require.Contains(s, body, "#"+code+`"`)
	require.Empty(s, resp.Header.Get("Idempotent-Replayed"))
}

// respondCreated is a handler that answers with 201, with repeated fields and cookies.
func respondCreated(c fiber.Ctx) error {
	c.Location("/charges/1")
	c.Append("Link", "</a>", "</b>")
	c.Cookie(&fiber.Cookie{Name: "a", Value: "1"})
	c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
	return c.Status(fiber.StatusCreated).SendString("charged " + string(c.Body()))
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := newService(t, respondCreated)
	first, body := s.send("key", "4200", nil)
	require.Equal(t, http.StatusCreated, first.StatusCode)
	require.Equal(t, "charged 4200", body)
	require.Len(t, first.Header["Set-Cookie"], 2)
	for _, key := range []string{"key", `"key"`} { // bare, and in quotes
		retry, again := s.send(key, "4200", nil)
		require.Equal(t, body, again)
		require.Equal(t, "true", retry.Header.Get("Idempotent-Replayed"))
		retry.Header.Del("Idempotent-Replayed")
		retry.Header.Set("Date", first.Header.Get("Date"))
		require.Equal(t, first.Header, retry.Header)
	}
	require.EqualValues(t, 1, s.runCount.Load())
}

// An answer without a body has no Content-Type, as without the middleware.
func TestAnswerWithoutBody(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c fiber.Ctx) error { return c.SendStatus(http.StatusNoContent) })
	for range 2 {
		resp, body := s.send("key", "4200", nil)
		require.Equal(t, http.StatusNoContent, resp.StatusCode)
		require.NotContains(t, resp.Header, "Content-Type")
		require.Empty(t, body)
	}
	require.EqualValues(t, 1, s.runCount.Load())
}

// A record keeps its key although fasthttp reuses the memory of the request.
func TestMemoryOfRequestsIsNotKept(t *testing.T) {
	t.Parallel()
	s := newService(t, respondCreated)
	for _, key := range []string{"first", "other", "third"} {
		_, body := s.send(key, key, nil)
		require.Equal(t, "charged "+key, body)
	}
	for _, key := range []string{"first", "other", "third"} {
		_, body := s.send(key, key, nil)
		require.Equal(t, "charged "+key, body)
	}
	require.EqualValues(t, 3, s.runCount.Load())
}

// Users send many requests at the same time, three with each key, and get the answers to their own requests.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t, respondCreated)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	url := "http://" + listener.Addr().String() + "/charges/1"
	client := &http.Client{Transport: new(http.Transport)}
	var clients errgroup.Group
	const users, keys = 8, 40
	for user := range users {
		for key := range keys {
			clients.Go(func() error {
				amount := fmt.Sprint(user*keys + key)
				return chargeThrice(client, url, fmt.Sprint("user ", user), fmt.Sprint(key), amount)
			})
		}
	}
	require.NoError(t, clients.Wait())
	require.EqualValues(t, users*keys, s.runCount.Load())
	client.CloseIdleConnections() // the app waits for them
	require.NoError(t, s.app.Shutdown())
	require.NoError(t, <-ended)
}

// chargeThrice sends a request three times, and returns an error unless each answer is the answer to this request.
func chargeThrice(client *http.Client, url, user, key, amount string) error {
	for range 3 {
		r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(amount))
		if err != nil {
			return err
		}
		r.Header.Set("User", user)
		r.Header.Set("Idempotency-Key", key)
		resp, err := client.Do(r)
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || string(body) != "charged "+amount {
			return fmt.Errorf("%s got %q for %s: %w", user, body, amount, err)
		}
	}
	return nil
}

func TestRequestsThatAreOthers(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*http.Request){
		"user":   func(r *http.Request) { r.Header.Set("User", "bob") },
		"path":   func(r *http.Request) { r.URL.Path = "/charges/2" },
		"method": func(r *http.Request) { r.Method = http.MethodPatch },
		"no key": func(r *http.Request) { r.Header.Del("Idempotency-Key") },
		"GET":    func(r *http.Request) { r.Method = http.MethodGet },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, respondCreated)
			s.send("key", "4200", nil)
			resp, _ := s.send("key", "4200", edit)
			require.Equal(t, http.StatusCreated, resp.StatusCode)
			require.Empty(t, resp.Header.Get("Idempotent-Replayed"))
			require.EqualValues(t, 2, s.runCount.Load())
		})
	}
}

func TestKeyReused(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*http.Request){
		"body":     func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("9900")) },
		"query":    func(r *http.Request) { r.URL.RawQuery = "later" },
		"media":    func(r *http.Request) { r.Header.Set("Content-Type", "text/html") },
		"encoding": func(r *http.Request) { r.Header.Set("Content-Encoding", "identity") },
		"query moved into the media type": func(r *http.Request) {
			r.URL.RawQuery = "n"
			r.Header.Set("Content-Type", "owtext/plain")
		},
		"query moved into the body": func(r *http.Request) {
			r.URL.RawQuery = ""
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("now4200")), 7
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, respondCreated)
			s.send("key", "4200", nil)
			resp, body := s.send("key", "4200", edit)
			s.requireRefused(resp, body, http.StatusConflict, "key-reused")
			require.Empty(t, resp.Header.Get("Location"))
			require.EqualValues(t, 1, s.runCount.Load())
		})
	}
	t.Run("a charset makes no difference", func(t *testing.T) {
		t.Parallel()
		s := newService(t, respondCreated)
		s.send("key", "4200", nil)
		resp, _ := s.send("key", "4200", func(r *http.Request) {
			r.Header.Set("Content-Type", "Text/Plain; charset=utf-8")
		})
		require.Equal(t, "true", resp.Header.Get("Idempotent-Replayed"))
	})
}

func TestKeyInvalid(t *testing.T) {
	t.Parallel()
	s := newService(t, respondCreated)
	for _, sent := range [][]string{
		{"a", "a"}, {""}, {" "}, {"a b"}, {"a,b"}, {"a;b"}, {`a\b`}, {`a"b`},
		{`"`}, {`""`}, {`"a`}, {`"a"b"`}, {"é"}, {strings.Repeat("a", 256)}, {`"a";x=1`},
	} {
		resp, body := s.send("", "4200", func(r *http.Request) { r.Header["Idempotency-Key"] = sent })
		s.requireRefused(resp, body, http.StatusBadRequest, "key-invalid")
	}
	require.Zero(t, s.runCount.Load())
	for _, sent := range []string{strings.Repeat("a", 255), `"a,b;c"`, `"a\"b"`, "!#$%&'()*+-./:<=>?@[]^_`{|}~"} {
		resp, _ := s.send(sent, "4200", nil)
		require.Equal(t, http.StatusCreated, resp.StatusCode, sent)
	}
}

func TestUserUnknown(t *testing.T) {
	t.Parallel()
	s := newService(t, respondCreated)
	resp, body := s.send("key", "4200", func(r *http.Request) { r.Header.Del("User") })
	s.requireRefused(resp, body, http.StatusUnauthorized, "user-unknown")
	require.Zero(t, s.runCount.Load())
}

func TestInProgress(t *testing.T) {
	t.Parallel()
	entered, goOn := make(chan struct{}), make(chan struct{})
	s := newService(t, func(c fiber.Ctx) error {
		close(entered)
		<-goOn
		return respondCreated(c)
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.send("key", "4200", nil)
	}()
	<-entered
	resp, body := s.send("key", "4200", nil)
	s.requireRefused(resp, body, http.StatusConflict, "in-progress")
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	close(goOn)
	<-done
	require.EqualValues(t, 1, s.runCount.Load())
}

func TestNotStorable(t *testing.T) {
	t.Parallel()
	s := newService(t, func(fiber.Ctx) error {
		return fiber.NewError(fiber.StatusServiceUnavailable, "later")
	})
	for range 2 {
		resp, body := s.send("key", "4200", nil)
		require.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
		require.Equal(t, "later", body)
	}
	require.EqualValues(t, 2, s.runCount.Load())
}

// A 404 or 405 by fiber itself is not stored. The same answer by a handler is.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	s := &service{T: t, app: fiber.New(fiber.Config{DisablePreParseMultipartForm: true})}
	s.app.Use(guardApp(t, s.app, newStore(), idempotency.Options{}))
	s.app.Put("/charges/1", respondCreated)
	s.app.Post("/charges/3", func(fiber.Ctx) error { return fiber.ErrNotFound })
	for path, want := range map[string]struct {
		status   int
		replayed string
	}{
		"/charges/1": {http.StatusMethodNotAllowed, ""},
		"/charges/2": {http.StatusNotFound, ""},
		"/charges/3": {http.StatusNotFound, "true"},
	} {
		var resp *http.Response
		for range 2 {
			resp, _ = s.send("key", "4200", func(r *http.Request) { r.URL.Path = path })
			require.Equal(t, want.status, resp.StatusCode, path)
		}
		require.Equal(t, want.replayed, resp.Header.Get("Idempotent-Replayed"), path)
	}
}

// A stream that breaks off is not stored as an answer.
func TestStreamBreaksOff(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c fiber.Ctx) error {
		return c.SendStream(io.MultiReader(strings.NewReader("half of"), iotest.ErrReader(errors.New("broken off"))))
	})
	for range 2 {
		resp, _ := s.send("key", "4200", nil)
		require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
	}
	require.EqualValues(t, 2, s.runCount.Load())
}

// Nothing of the answer of a handler that panics remains.
func TestHeaderOfAPanickedHandlerIsTakenBack(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c fiber.Ctx) error {
		if err := respondCreated(c); err != nil {
			return err
		}
		panic("crash")
	}, recoverer.New())
	resp, body := s.send("key", "4200", nil)
	require.Equal(t, http.StatusInternalServerError, resp.StatusCode)
	require.NotContains(t, body, "charged")
	require.Empty(t, resp.Header.Get("Location"))
	require.Empty(t, resp.Header["Set-Cookie"])
}

// overtakenStore is a store in which another attempt takes over each claim before its end.
type overtakenStore struct{ idempotency.Store }

func (s overtakenStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	return record, lostClaim{claim}, err
}

// lostClaim is a claim that another attempt has taken over.
type lostClaim struct{ idempotency.Claim }

func (lostClaim) Complete(context.Context, idempotency.Response, time.Duration) error {
	return idempotency.ErrClaimLost
}

// The refusal of an attempt that lost its claim has no header field of the attempt's answer.
func TestClaimLost(t *testing.T) {
	t.Parallel()
	s := newServiceWith(t, overtakenStore{newStore()}, idempotency.Options{}, respondCreated)
	resp, body := s.send("key", "4200", nil)
	s.requireRefused(resp, body, http.StatusConflict, "in-progress")
	require.Empty(t, resp.Header.Get("Location"))
	require.Empty(t, resp.Header["Set-Cookie"])
}

// brokenStore is a store whose server is down.
type brokenStore struct{ idempotency.Store }

func (brokenStore) Begin(
	context.Context, idempotency.Key, idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	return idempotency.Record{}, nil, errors.New("down")
}

func TestStoreDown(t *testing.T) {
	t.Parallel()
	s := newServiceWith(t, brokenStore{}, idempotency.Options{}, respondCreated)
	resp, body := s.send("key", "4200", nil)
	s.requireRefused(resp, body, http.StatusServiceUnavailable, "store-unavailable")
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	require.Zero(t, s.runCount.Load())
}

// A replay has the fields that middleware outside sets for the retry, except for the fields that the handler has deleted.
func TestHeaderOfMiddlewareOutside(t *testing.T) {
	t.Parallel()
	secure := func(c fiber.Ctx) error {
		c.Set("X-Frame-Options", "DENY")
		return c.Next()
	}
	s := newService(t, func(c fiber.Ctx) error {
		c.Vary("Accept")
		c.Response().Header.Del("X-Frame-Options")
		return respondCreated(c)
	}, requestid.New(), cors.New(cors.Config{AllowOrigins: []string{"https://a.example", "https://b.example"}}), secure)
	first, _ := s.send("key", "4200", func(r *http.Request) { r.Header.Set("Origin", "https://a.example") })
	retry, _ := s.send("key", "4200", func(r *http.Request) { r.Header.Set("Origin", "https://b.example") })
	require.Equal(t, "true", retry.Header.Get("Idempotent-Replayed"))
	require.NotEqual(t, first.Header.Get("X-Request-Id"), retry.Header.Get("X-Request-Id"))
	require.Equal(t, "https://b.example", retry.Header.Get("Access-Control-Allow-Origin"))
	for _, resp := range []*http.Response{first, retry} {
		require.Equal(t, "Origin, Accept", resp.Header.Get("Vary"))
		require.Empty(t, resp.Header["X-Frame-Options"])
	}
}

func TestMountedTwice(t *testing.T) {
	t.Parallel()
	app := fiber.New(fiber.Config{DisablePreParseMultipartForm: true})
	once := guardApp(t, app, newStore(), idempotency.Options{})
	s := &service{T: t, app: app}
	app.Use(once).Post("/charges/:id", once, func(c fiber.Ctx) error {
		s.runCount.Add(1)
		return respondCreated(c)
	})
	for range 2 {
		resp, body := s.send("k", "a", nil)
		require.Equal(t, http.StatusCreated, resp.StatusCode, body)
	}
	require.EqualValues(t, 1, s.runCount.Load())
}

// The verdicts have the meaning that they have on net/http. Keep makes an answer storable.
func TestDecide(t *testing.T) {
	t.Parallel()
	for verdict, runs := range map[idempotency.Verdict]int64{
		idempotency.Keep: 1, idempotency.Tombstone: 1, idempotency.Free: 2, idempotency.Unknown: 2,
	} {
		s := newService(t, func(c fiber.Ctx) error {
			if !idempotency.Decide(c.Context(), verdict) {
				return errors.New("no operation")
			}
			return fiber.ErrServiceUnavailable
		})
		first, _ := s.send("key", "4200", nil)
		require.Equal(t, http.StatusServiceUnavailable, first.StatusCode)
		retry, body := s.send("key", "4200", nil)
		if verdict == idempotency.Tombstone {
			s.requireRefused(retry, body, http.StatusConflict, "not-replayable")
		}
		require.Equal(t, runs, s.runCount.Load())
	}
}

// The options of the middleware apply, for example to names of the key, methods, size of the answer, and replays.
func TestOptions(t *testing.T) {
	t.Parallel()
	replayDenied := errors.New("not yours")
	for name, row := range map[string]struct {
		opts       idempotency.Options
		edit       func(*http.Request)
		wantStatus int
		wantCode   string // of the refusal of the retry; empty if the retry is replayed
		wantRuns   int64
	}{
		"another header": {
			opts:       idempotency.Options{Headers: []string{"X-Idempotency-Key"}},
			edit:       func(r *http.Request) { r.Header.Set("X-Idempotency-Key", "key") },
			wantStatus: 201, wantRuns: 1,
		},
		"another method": {
			opts:       idempotency.Options{Methods: []string{"PUT"}},
			edit:       func(r *http.Request) { r.Method = http.MethodPut },
			wantStatus: 201, wantRuns: 1,
		},
		"required": {
			opts:       idempotency.Options{Required: true},
			edit:       func(r *http.Request) { r.Header.Del("Idempotency-Key") },
			wantStatus: 400, wantCode: "key-missing",
		},
		"a large answer": {opts: idempotency.Options{MaxResponse: 4}, wantStatus: 409, wantCode: "not-replayable", wantRuns: 1},
		"a denied replay": {
			opts:       idempotency.Options{Replay: func(*http.Request, *idempotency.Response) error { return replayDenied }},
			wantStatus: 403, wantCode: "replay-refused", wantRuns: 1,
		},
		"a stream": {opts: idempotency.Options{Stream: true}, wantStatus: 201, wantRuns: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServiceWith(t, newStore(), row.opts, respondCreated)
			first, firstBody := s.send("key", "4200", row.edit)
			if row.wantRuns == 1 {
				require.Equal(t, http.StatusCreated, first.StatusCode)
				require.Equal(t, "charged 4200", firstBody)
			}
			retry, body := s.send("key", "4200", row.edit)
			if row.wantCode == "" {
				require.Equal(t, row.wantStatus, retry.StatusCode)
				require.Equal(t, "true", retry.Header.Get("Idempotent-Replayed"))
				require.Equal(t, firstBody, body)
			} else {
				s.requireRefused(retry, body, row.wantStatus, row.wantCode)
			}
			require.Equal(t, row.wantRuns, s.runCount.Load())
		})
	}
}

// An ErrorHandler answers with the context of fiber. Nothing of a lost attempt's answer remains.
func TestErrorHandler(t *testing.T) {
	t.Parallel()
	opts := idempotency.Options{ErrorHandler: func(_ http.ResponseWriter, r *http.Request, e *idempotency.Error) {
		_ = fiberidempotency.Context(r).Status(e.Status).JSON(fiber.Map{"error": e.Code})
	}}
	for name, row := range map[string]struct {
		store idempotency.Store
		sent  string
		want  string
	}{
		"before the handler": {newStore(), "two words", `{"error":"key-invalid"}`},
		"after the handler":  {overtakenStore{newStore()}, "key", `{"error":"in-progress"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServiceWith(t, row.store, opts, respondCreated)
			resp, body := s.send(row.sent, "4200", nil)
			require.JSONEq(t, row.want, body)
			require.Empty(t, resp.Header.Get("Location"))
			require.Empty(t, resp.Header["Set-Cookie"])
		})
	}
	require.Nil(t, fiberidempotency.Context(httptest.NewRequest(http.MethodPost, "/", nil)))
}

// Outer middleware gets the error of an unguarded handler. After a guarded handler, the error is answered, and outer middleware
// sees the answer, and its own context.
func TestOuterMiddlewareSeesTheAnswer(t *testing.T) {
	t.Parallel()
	type view struct {
		err    error
		status int
		body   string
	}
	type contextKey struct{}
	views := make(chan view, 1)
	declined := fiber.NewError(http.StatusPaymentRequired, "declined")
	s := newService(t, func(c fiber.Ctx) error {
		require.Equal(t, "outer", c.Context().Value(contextKey{}))
		return declined
	}, func(c fiber.Ctx) error {
		ctx := context.WithValue(context.Background(), contextKey{}, "outer")
		c.SetContext(ctx)
		err := c.Next()
		require.Equal(t, ctx, c.Context())
		views <- view{err, c.Response().StatusCode(), string(c.Response().Body())}
		return err
	})
	for key, want := range map[string]view{
		"":    {declined, http.StatusOK, ""},
		"key": {nil, http.StatusPaymentRequired, "declined"},
	} {
		resp, body := s.send(key, "4200", nil)
		require.Equal(t, want, <-views)
		require.Equal(t, http.StatusPaymentRequired, resp.StatusCode)
		require.Equal(t, "declined", body)
	}
}

// A context without a deadline may end while the handler runs, as in a shutdown. The answer is stored and sent all the same.
func TestContextOutsideEnds(t *testing.T) {
	t.Parallel()
	shutdown, shutDown := context.WithCancel(t.Context())
	s := newService(t, func(c fiber.Ctx) error {
		shutDown()
		return respondCreated(c)
	}, func(c fiber.Ctx) error {
		c.SetContext(shutdown)
		return c.Next()
	})
	for _, wantReplayed := range []string{"", "true"} {
		resp, body := s.send("key", "4200", nil)
		require.Equal(t, http.StatusCreated, resp.StatusCode, body)
		require.Equal(t, "charged 4200", body)
		require.Equal(t, wantReplayed, resp.Header.Get("Idempotent-Replayed"))
	}
	require.EqualValues(t, 1, s.runCount.Load())
}

// The tests that all adapters share find fiber behind net/http.
func TestSharedByAdapters(t *testing.T) {
	t.Parallel()
	serve := func(guard adaptertest.Guard, mount func(app *fiber.App, once fiber.Handler)) http.Handler {
		app := fiber.New(fiber.Config{DisablePreParseMultipartForm: true})
		once, err := fiberidempotency.Middleware(app, guard.(*idempotency.Middleware))
		require.NoError(t, err)
		mount(app, once)
		return adaptor.FiberApp(app)
	}
	adaptertest.CheckMounting(t, func(guard adaptertest.Guard, run func()) http.Handler {
		return serve(guard, func(app *fiber.App, once fiber.Handler) {
			app.Group("/v1", once).Post("/:id", func(c fiber.Ctx) error {
				run()
				return c.Status(http.StatusCreated).SendString("charged")
			})
		})
	})
	adaptertest.CheckClaimLost(t, func(guard adaptertest.Guard) http.Handler {
		return serve(guard, func(app *fiber.App, once fiber.Handler) {
			app.Post("/", once, func(c fiber.Ctx) error {
				<-c.Context().Done()
				return c.Context().Err()
			})
		})
	})
	adaptertest.CheckStatus(t, func(r *http.Request) (string, error) {
		return userOf(fiberidempotency.Context(r)), nil
	}, func(idem *idempotency.Middleware) http.Handler {
		return serve(idem, func(app *fiber.App, once fiber.Handler) {
			app.Post("/payments", once, func(c fiber.Ctx) error {
				return c.Status(http.StatusCreated).SendString("charged")
			})
			app.Get("/status", fiberidempotency.Status(idem))
		})
	})
}

// Middleware reports all faults together.
func TestMiddlewareRefusesApp(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]fiber.Config{
		"DisablePreParseMultipartForm of the app is not set": {},
		"StreamRequestBody of the app is set":                {DisablePreParseMultipartForm: true, StreamRequestBody: true},
	} {
		_, err := fiberidempotency.Middleware(fiber.New(cfg), nil)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "Middleware is nil")
	}
}

// fasthttp leaves a few goroutines that never end: the clock, and those that clean up after servers.
func TestMain(m *testing.M) {
	var options []goleak.Option
	for _, function := range []string{".updateServerDate.func1", "/stackless.funcWorker", ".(*workerPool).Start.func2"} {
		options = append(options, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp"+function))
	}
	goleak.VerifyTestMain(m, options...)
}
