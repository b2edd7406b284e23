package echoidempotency_test

import (
	"log/slog"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echoidempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	handler = adaptertest.EchoHandler[*echo.Context]
	layer   = adaptertest.EchoMiddleware[*echo.Context]
)

func TestMiddleware(t *testing.T) {
	t.Parallel()
	adaptertest.RunEcho(t, adaptertest.Echo[*echo.Context]{
		New: func() adaptertest.EchoApp[*echo.Context] {
			e := echo.New()
			e.Logger = slog.New(slog.DiscardHandler)
			return app{e}
		},
		Guard: func(guard adaptertest.Guard) layer {
			m := echoidempotency.Middleware(guard)
			return func(next handler) handler { return m(next) }
		},
		Context: echoidempotency.Context,
		Response: func(c *echo.Context) adaptertest.EchoResponse {
			r, _ := echo.UnwrapResponse(c.Response())
			return adaptertest.EchoResponse{
				ResponseWriter: c.Response(), Status: r.Status, Size: r.Size, Committed: r.Committed, Before: r.Before,
			}
		},
		NotFound:  echo.ErrNotFound,
		HTTPError: func(status int, message string) error { return echo.NewHTTPError(status, message) },
		BodyLimit: func(next handler) handler { return middleware.BodyLimit(4)(next) },
	})
}

// The user function finds the context of echo in a question for the state of a key.
func TestStatus(t *testing.T) {
	t.Parallel()
	user := func(r *http.Request) (string, error) {
		return echoidempotency.Context(r).Request().Header.Get("User"), nil
	}
	adaptertest.CheckStatus(t, user, func(idem *idempotency.Middleware) http.Handler {
		e := echo.New()
		e.POST("/payments", func(c *echo.Context) error {
			return c.String(http.StatusCreated, "charged")
		}, echoidempotency.Middleware(idem))
		e.GET("/status", echoidempotency.Status(idem))
		return e
	})
}

// app implements adaptertest.EchoApp.
type app struct{ *echo.Echo }

func (a app) OnError(h func(c *echo.Context, err error)) { a.HTTPErrorHandler = h }

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
