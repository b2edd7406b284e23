package compat_test

import (
	"errors"
	"html/template"
	"io"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
)

// newEcho4Door returns the door of echo v4.
func newEcho4Door() *echoFramework[echo.Context, echo.MiddlewareFunc] {
	return &echoFramework[echo.Context, echo.MiddlewareFunc]{
		door: door{name: "echo v4"}, mount: echo4idempotency.Middleware, serve: serveEcho4,
		response:  func(c echo.Context) http.ResponseWriter { return c.Response() },
		committed: func(c echo.Context) bool { return c.Response().Committed },
		hooks: func(c echo.Context, before, after func()) error {
			c.Response().Before(before)
			c.Response().After(after)
			return nil
		},
		failure:  func(status int, message string) error { return echo.NewHTTPError(status, message) },
		wrapping: `return echo.NewHTTPError(402, "declined").SetInternal(err)`,
		wrap:     func(err error) error { return err.(*echo.HTTPError).SetInternal(errors.New("no money")) },
		tooMany:  echo.ErrTooManyRequests, forbidden: echo.ErrForbidden, badGateway: echo.ErrBadGateway,
		contextTimeout: middleware.ContextTimeout(shortly),
		recovery:       middleware.Recover(),
		gzip:           middleware.Gzip(),
		logger: middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
			HandleError: true, LogValuesFunc: func(echo.Context, middleware.RequestLoggerValues) error { return nil },
		}),
		//lint:ignore SA1019 services may still have it
		deprecated: []echo.MiddlewareFunc{middleware.TimeoutWithConfig(middleware.TimeoutConfig{Timeout: long})},
	}
}

func echo4Door() door { return newEcho4Door().open() }

func serveEcho4(
	mount []echo.MiddlewareFunc, l echoLayers[echo.Context, echo.MiddlewareFunc], h func(echo.Context) error,
) http.Handler {
	e := newEcho4()
	if l.errors != nil {
		e.HTTPErrorHandler = func(err error, c echo.Context) { l.errors(c, err) }
	}
	e.Use(l.outer...)
	e.POST("/charges/:id", h, append(mount, l.inner...)...)
	return e
}

func newEcho4() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Renderer = &echo.TemplateRenderer{Template: template.Must(template.New("charge").Parse("<b>{{.}}</b>"))}
	return e
}

func TestEcho4GzipOfAnError(t *testing.T) { newEcho4Door().testGzipOfAnError(t) }

func TestEcho4WrapMiddleware(t *testing.T) { newEcho4Door().testWithoutAdapter(t, echo.WrapMiddleware) }
