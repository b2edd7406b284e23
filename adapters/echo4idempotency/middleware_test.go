package echo4idempotency_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func guard(t *testing.T, user idempotency.UserFunc, opts idempotency.Options) echo.MiddlewareFunc {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, opts)
	require.NoError(t, err)
	return echo4idempotency.Middleware(idem)
}

func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	return e
}

type answer struct {
	status   int
	header   http.Header
	body     string
	replayed bool
}

// server starts a service, and returns a function that sends requests to it, with key unless it is empty.
func server(t *testing.T, e *echo.Echo) func(path, key, body string) answer {
	t.Helper()
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return func(path, key, body string) answer {
		r, err := http.NewRequest(http.MethodPost, s.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		resp, err := s.Client().Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		replayed := resp.Header.Get("Idempotent-Replayed") == "true"
		resp.Header.Del("Date")
		resp.Header.Del("Idempotent-Replayed")
		return answer{resp.StatusCode, resp.Header, string(b), replayed}
	}
}

// requireReplay checks that an answer is a replay of first.
func requireReplay(t *testing.T, first, a answer) {
	t.Helper()
	require.True(t, a.replayed, a)
	a.replayed = false
	require.Equal(t, first, a)
}

func TestContextOfTheRequest(t *testing.T) {
	t.Parallel()
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			c.Set("user", c.Request().Header.Get("Idempotency-Key"))
			return next(c)
		}
	})
	user := func(r *http.Request) (string, error) {
		name, _ := echo4idempotency.Context(r).Get("user").(string)
		if name == "nobody" {
			return "", nil
		}
		return name, nil
	}
	e.POST("/:id", func(c echo.Context) error {
		assert.Equal(t, c, echo4idempotency.Context(c.Request()))
		_, guarded := idempotency.FromContext(c.Request().Context())
		assert.True(t, guarded)
		response := c.Response()
		assert.Equal(t, http.StatusOK, response.Status) // as long as nothing is written
		assert.False(t, response.Committed)
		return c.String(http.StatusCreated, c.Param("id")+c.Get("user").(string))
	}, guard(t, user, idempotency.Options{
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			_ = echo4idempotency.Context(r).JSON(e.Status, map[string]string{"error": e.Code})
		},
	}))
	send := server(t, e)
	first := send("/1", "k", "a")
	require.Equal(t, "1k", first.body)
	requireReplay(t, first, send("/1", "k", "a"))
	require.Equal(t, answer{
		status: http.StatusUnauthorized, body: `{"error":"user-unknown"}` + "\n",
		header: http.Header{"Content-Type": {"application/json"}, "Content-Length": {"25"}},
	}, send("/1", "nobody", "a"))
	require.Equal(t, `{"error":"key-reused"}`+"\n", send("/1", "k", "b").body)
	require.Nil(t, echo4idempotency.Context(httptest.NewRequest(http.MethodPost, "/", nil)))
}

// seen is what outer middleware sees of a request when the guard has returned.
type seen struct {
	status int
	size   int64
	err    error
	value  any
}

func TestOuterMiddlewareSeesTheAnswer(t *testing.T) {
	t.Parallel()
	failure := echo.NewHTTPError(http.StatusPaymentRequired, "declined")
	for name, row := range map[string]struct {
		handler echo.HandlerFunc
		first   seen
		retry   seen
	}{
		"an answer": {
			func(c echo.Context) error { c.Set("inside", 1); return c.String(http.StatusCreated, "charged") },
			seen{http.StatusCreated, 7, nil, 1}, seen{http.StatusCreated, 7, nil, nil},
		},
		"a status": {
			func(c echo.Context) error { return c.NoContent(http.StatusNoContent) },
			seen{status: http.StatusNoContent}, seen{status: http.StatusNoContent},
		},
		"an error": {
			func(echo.Context) error { return failure },
			seen{status: http.StatusPaymentRequired, size: 23, err: failure}, seen{status: http.StatusPaymentRequired, size: 23},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := make(chan seen, 2)
			e := newEcho()
			e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c echo.Context) error {
					request := c.Request()
					err := next(c)
					response := c.Response()
					assert.True(t, response.Committed)
					assert.Same(t, request, c.Request())
					log <- seen{response.Status, response.Size, err, c.Get("inside")}
					return err
				}
			})
			e.POST("/", row.handler, guard(t, idempotency.SingleUser, idempotency.Options{}))
			send := server(t, e)
			first := send("/", "k", "")
			requireReplay(t, first, send("/", "k", ""))
			require.Equal(t, row.first, <-log)
			require.Equal(t, row.retry, <-log)
		})
	}
}

// An error handler that does not look whether there is an answer adds nothing to that of the guarded handler, and
// neither does middleware that sees its error.
func TestNothingIsWrittenAfterTheAnswer(t *testing.T) {
	t.Parallel()
	e := newEcho()
	e.HTTPErrorHandler = func(err error, c echo.Context) { _ = c.String(http.StatusPaymentRequired, err.Error()) }
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			if err != nil {
				c.Response().WriteHeader(http.StatusTeapot)
				_ = http.NewResponseController(c.Response()).Flush()
			}
			return err
		}
	})
	e.POST("/", func(echo.Context) error { return errors.New("declined") },
		guard(t, idempotency.SingleUser, idempotency.Options{}))
	send := server(t, e)
	first := send("/", "k", "")
	require.Equal(t, "declined", first.body)
	require.Equal(t, http.StatusPaymentRequired, first.status)
	retry := send("/", "k", "")
	require.True(t, retry.replayed)
	require.Equal(t, first.body, retry.body)
}

// What the error handler of echo does not answer may be answered outside. It is not stored.
func TestErrorThatEchoDoesNotAnswer(t *testing.T) {
	t.Parallel()
	e := newEcho()
	e.HTTPErrorHandler = func(error, echo.Context) {}
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := next(c); err != nil {
				return c.String(http.StatusPaymentRequired, err.Error())
			}
			return nil
		}
	})
	runs := 0
	e.POST("/", func(echo.Context) error { runs++; return errors.New("declined") },
		guard(t, idempotency.SingleUser, idempotency.Options{}))
	send := server(t, e)
	want := send("/", "", "")
	require.Equal(t, "declined", want.body)
	require.Equal(t, want, send("/", "k", ""))
	require.Equal(t, want, send("/", "k", ""))
	require.Equal(t, 3, runs)
}

func TestHooksOfOuterMiddleware(t *testing.T) {
	t.Parallel()
	e := newEcho()
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			response := c.Response()
			response.Before(func() { response.Header().Set("X-Fresh", c.Request().Header.Get("X-Request")) })
			return next(c)
		}
	})
	e.POST("/", func(c echo.Context) error { return c.String(http.StatusOK, "charged") },
		guard(t, idempotency.SingleUser, idempotency.Options{}))
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	for _, id := range []string{"1", "2"} {
		r, err := http.NewRequest(http.MethodPost, s.URL, nil)
		require.NoError(t, err)
		r.Header.Set("Idempotency-Key", "k")
		r.Header.Set("X-Request", id)
		resp, err := s.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, id, resp.Header.Get("X-Fresh"))
	}
}

func TestMounting(t *testing.T) {
	t.Parallel()
	for name, mount := range map[string]func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc){
		"all routes": func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) { e.Use(m); e.POST("/v1/p", h) },
		"a group":    func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) { e.Group("/v1", m).POST("/p", h) },
		"a route":    func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) { e.POST("/v1/p", h, m) },
		"twice":      func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) { e.Group("/v1", m).POST("/p", h, m) },
		"twice with an error": func(e *echo.Echo, m echo.MiddlewareFunc, h echo.HandlerFunc) {
			e.Group("/v1", m).POST("/p", func(c echo.Context) error { return errors.Join(h(c), errors.New("no log")) }, m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			e := newEcho()
			mount(e, guard(t, idempotency.SingleUser, idempotency.Options{}), func(c echo.Context) error {
				runs++
				return c.String(http.StatusCreated, "charged")
			})
			send := server(t, e)
			first := send("/v1/p", "k", "")
			require.Equal(t, "charged", first.body)
			requireReplay(t, first, send("/v1/p", "k", ""))
			require.Equal(t, 1, runs)
		})
	}
}

func TestWithoutAKeyNothingChanges(t *testing.T) {
	t.Parallel()
	e := newEcho()
	var request *http.Request
	var response *echo.Response
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			request, response = c.Request(), c.Response()
			return next(c)
		}
	})
	e.POST("/", func(c echo.Context) error {
		assert.Same(t, request, c.Request())
		assert.Same(t, response, c.Response())
		return echo.ErrForbidden
	}, guard(t, idempotency.SingleUser, idempotency.Options{}))
	require.Equal(t, http.StatusForbidden, server(t, e)("/", "", "").status)
}

// The server removes the files of a form that it finds in its own request.
func TestFormIsLeftToTheServer(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "k"} {
		e := newEcho()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(
			"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\nfile\r\n--b--\r\n"))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		e.POST("/", func(c echo.Context) error {
			file, err := c.FormFile("f")
			assert.NoError(t, err)
			return c.String(http.StatusCreated, file.Filename)
		}, guard(t, idempotency.SingleUser, idempotency.Options{}))
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		require.Equal(t, http.StatusCreated, w.Code)
		require.NotNil(t, r.MultipartForm)
	}
}

func TestBodyLimit(t *testing.T) {
	t.Parallel()
	limit := middleware.BodyLimit("4B")
	for name, layers := range map[string]func(m echo.MiddlewareFunc) []echo.MiddlewareFunc{
		"outside": func(m echo.MiddlewareFunc) []echo.MiddlewareFunc { return []echo.MiddlewareFunc{limit, m} },
		"inside":  func(m echo.MiddlewareFunc) []echo.MiddlewareFunc { return []echo.MiddlewareFunc{m, limit} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEcho()
			e.POST("/", func(c echo.Context) error { return c.String(http.StatusCreated, "charged") },
				layers(guard(t, idempotency.SingleUser, idempotency.Options{}))...)
			send := server(t, e)
			require.Equal(t, http.StatusCreated, send("/", "k", "1234").status)
			first, retry := send("/", "l", "12345"), send("/", "l", "12345")
			require.Equal(t, http.StatusRequestEntityTooLarge, first.status)
			require.Equal(t, name == "inside", retry.replayed)
			require.Equal(t, first.body, retry.body)
		})
	}
}

// The Timeout of echo, which is deprecated, sends an empty 200 for an answer after which an error comes.
func TestDeprecatedTimeout(t *testing.T) {
	t.Parallel()
	//lint:ignore SA1019 services may still have it
	timeout := middleware.TimeoutWithConfig(middleware.TimeoutConfig{Timeout: time.Minute})
	for name, outer := range map[string][]echo.MiddlewareFunc{
		"outside":                      {timeout},
		"outside, and Gzip in between": {timeout, middleware.Gzip()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEcho()
			e.Use(outer...)
			e.POST("/", func(echo.Context) error { return echo.NewHTTPError(http.StatusPaymentRequired, "declined") },
				guard(t, idempotency.SingleUser, idempotency.Options{}))
			send := server(t, e)
			first := send("/", "k", "")
			require.Equal(t, http.StatusPaymentRequired, first.status)
			requireReplay(t, first, send("/", "k", ""))
		})
	}
}

// A claim that is lost is refused, whatever the handler returns, and the refusal is the only answer.
func TestClaimLost(t *testing.T) {
	t.Parallel()
	var once sync.Once
	store := lossyStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Lease: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	e := newEcho()
	e.HTTPErrorHandler = func(err error, c echo.Context) { _ = c.String(http.StatusTeapot, err.Error()) }
	e.POST("/", func(c echo.Context) error {
		ctx := c.Request().Context()
		once.Do(func() { <-ctx.Done() })
		assert.ErrorIs(t, context.Cause(ctx), idempotency.ErrClaimLost)
		return ctx.Err()
	}, echo4idempotency.Middleware(idem))
	got := server(t, e)("/", "k", "")
	require.Equal(t, http.StatusConflict, got.status, got.body)
	require.Equal(t, "application/problem+json", got.header.Get("Content-Type"))
	require.True(t, strings.HasSuffix(got.body, "}") && strings.Count(got.body, "{") == 1, got.body)
}

// lossyStore is a store whose claims are lost when they are renewed.
type lossyStore struct{ idempotency.Store }

func (s lossyStore) Begin(
	ctx context.Context, key idempotency.Key, request idempotency.ClaimRequest,
) (idempotency.Record, idempotency.Claim, error) {
	record, claim, err := s.Store.Begin(ctx, key, request)
	if claim != nil {
		claim = lossyClaim{claim}
	}
	return record, claim, err
}

type lossyClaim struct{ idempotency.Claim }

func (lossyClaim) Extend(context.Context, time.Duration) error { return idempotency.ErrClaimLost }
