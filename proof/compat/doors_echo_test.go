package compat_test

import (
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/idempotency-go/idempotency/adapters/echoidempotency"
)

// newEchoDoor returns the door of echo v5.
func newEchoDoor() *echoFramework[*echo.Context, echo.MiddlewareFunc] {
	return &echoFramework[*echo.Context, echo.MiddlewareFunc]{
		door: door{name: "echo v5"}, mount: echoidempotency.Middleware, serve: serveEcho,
		response: func(c *echo.Context) http.ResponseWriter { return c.Response() },
		committed: func(c *echo.Context) bool {
			r, _ := echo.UnwrapResponse(c.Response())
			return r != nil && r.Committed
		},
		hooks: func(c *echo.Context, before, after func()) error {
			r, err := echo.UnwrapResponse(c.Response())
			if err == nil {
				r.Before(before)
				r.After(after)
			}
			return err
		},
		failure:  func(status int, message string) error { return echo.NewHTTPError(status, message) },
		wrapping: `return echo.NewHTTPError(402, "declined").Wrap(err)`,
		wrap:     func(err error) error { return err.(*echo.HTTPError).Wrap(errors.New("no money")) },
		tooMany:  echo.ErrTooManyRequests, forbidden: echo.ErrForbidden, badGateway: echo.ErrBadGateway,
		contextTimeout: middleware.ContextTimeout(shortly),
		recovery:       middleware.Recover(),
		gzip:           middleware.Gzip(),
		logger: middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
			HandleError: true, LogValuesFunc: func(*echo.Context, middleware.RequestLoggerValues) error { return nil },
		}),
	}
}

func echoDoor() door { return newEchoDoor().open() }

func serveEcho(
	mount []echo.MiddlewareFunc, l echoLayers[*echo.Context, echo.MiddlewareFunc], h func(*echo.Context) error,
) http.Handler {
	e := newEcho()
	if l.errors != nil {
		e.HTTPErrorHandler = func(c *echo.Context, err error) { l.errors(c, err) }
	}
	e.Use(l.outer...)
	e.POST("/charges/:id", h, append(mount, l.inner...)...)
	return e
}

func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	e.Renderer = &echo.TemplateRenderer{Template: template.Must(template.New("charge").Parse("<b>{{.}}</b>"))}
	return e
}

func TestEchoGzipOfAnError(t *testing.T) { newEchoDoor().testGzipOfAnError(t) }

func TestEchoWrapMiddleware(t *testing.T) { newEchoDoor().testWithoutAdapter(t, echo.WrapMiddleware) }
