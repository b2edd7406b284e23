package echo4idempotency_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	handler = adaptertest.EchoHandler[echo.Context]
	layer   = adaptertest.EchoMiddleware[echo.Context]
)

func TestMiddleware(t *testing.T) {
	t.Parallel()
	adaptertest.RunEcho(t, adaptertest.Echo[echo.Context]{
		New: func() adaptertest.EchoApp[echo.Context] {
			return app{newEcho()}
		},
		Guard: func(guard adaptertest.Guard) layer {
			m := echo4idempotency.Middleware(guard)
			return func(next handler) handler { return m(next) }
		},
		Context: echo4idempotency.Context,
		Response: func(c echo.Context) adaptertest.EchoResponse {
			r := c.Response()
			return adaptertest.EchoResponse{
				ResponseWriter: r, Status: r.Status, Size: r.Size, Committed: r.Committed, Before: r.Before,
			}
		},
		NotFound:  echo.ErrNotFound,
		HTTPError: func(status int, message string) error { return echo.NewHTTPError(status, message) },
		BodyLimit: func(next handler) handler { return middleware.BodyLimit("4B")(next) },
	})
}

// The user function finds the context of echo in a question for the state of a key.
func TestStatus(t *testing.T) {
	t.Parallel()
	user := func(r *http.Request) (string, error) {
		return echo4idempotency.Context(r).Request().Header.Get("User"), nil
	}
	adaptertest.CheckStatus(t, user, func(idem *idempotency.Middleware) http.Handler {
		e := newEcho()
		e.POST("/payments", func(c echo.Context) error {
			return c.String(http.StatusCreated, "charged")
		}, echo4idempotency.Middleware(idem))
		e.GET("/status", echo4idempotency.Status(idem))
		return e
	})
}

// newEcho returns an echo without log output.
func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	return e
}

// app implements adaptertest.EchoApp.
type app struct{ *echo.Echo }

func (a app) OnError(h func(c echo.Context, err error)) {
	a.HTTPErrorHandler = func(err error, c echo.Context) { h(c, err) }
}

func (a app) Use(m ...layer) { a.Echo.Use(convertLayers(m)...) }

func (a app) POST(path string, h handler, m ...layer) { a.Echo.POST(path, h, convertLayers(m)...) }

func (a app) PUT(path string, h handler) { a.Echo.PUT(path, h) }

func (a app) POSTInGroup(prefix string, group layer, path string, h handler, m ...layer) {
	a.Group(prefix, convertLayers([]layer{group})...).POST(path, h, convertLayers(m)...)
}

// convertLayers converts middleware to the type of echo.
func convertLayers(layers []layer) (converted []echo.MiddlewareFunc) {
	for _, m := range layers {
		converted = append(converted, func(next echo.HandlerFunc) echo.HandlerFunc { return m(next) })
	}
	return converted
}

// If an error follows an answer, the deprecated Timeout of echo sends an empty 200. So the guard must pass on no error
// after an answer.
func TestDeprecatedTimeout(t *testing.T) {
	t.Parallel()
	//lint:ignore SA1019 services may still use Timeout
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
				echo4idempotency.Middleware(adaptertest.NewGuard(t, idempotency.SingleUser, idempotency.Options{})))
			send := adaptertest.Serve(t, e)
			first := send("/", "k", "")
			require.Equal(t, http.StatusPaymentRequired, first.Status)
			adaptertest.RequireReplay(t, first, send("/", "k", ""))
		})
	}
}
