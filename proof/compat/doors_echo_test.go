package compat_test

import (
	"errors"
	"html/template"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/adapters/echoidempotency"
)

// echo5 is the door of echo v5.
type echo5 struct {
	door
	mount func(guardian) echo.MiddlewareFunc
}

func echoDoor() door {
	d := &echo5{door{name: "echo v5"}, echoidempotency.Middleware}
	d.errors()
	d.answers()
	d.layers()
	return d.door
}

func (d *echo5) errors() {
	d.way(erring, `return echo.NewHTTPError(402, "declined")`, replayed, d.declined)
	d.way(erring, `return echo.NewHTTPError(402, "declined").Wrap(err)`, replayed, func(c *echo.Context) error {
		return echo.NewHTTPError(http.StatusPaymentRequired, "declined").Wrap(errors.New("no money"))
	})
	d.way(erring, `return echo.NewHTTPError(503, "down")`, runsAgain, func(c *echo.Context) error {
		return echo.NewHTTPError(http.StatusServiceUnavailable, "down")
	})
	d.way(erring, "return echo.ErrTooManyRequests", runsAgain, func(c *echo.Context) error {
		return echo.ErrTooManyRequests
	})
	d.way(erring, "return err", runsAgain, func(c *echo.Context) error { return errors.New("no disk") })
	d.way(erring, "return err after an answer", replayed, func(c *echo.Context) error {
		return errors.Join(c.String(http.StatusCreated, receipt), errors.New("no log"))
	})
	d.way(erring, "return err with fields set", replayed, func(c *echo.Context) error {
		c.Response().Header().Set("X-Reason", "poor")
		return echo.ErrForbidden
	})
	d.way(erring, "return c.Bind(&strings)", replayed, func(c *echo.Context) error {
		var into []string
		return c.Bind(&into)
	})
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain, func(c *echo.Context) error {
		panic(http.ErrAbortHandler)
	})
	d.way(panicking, "panic", runsAgain, d.crash)
}

func (*echo5) declined(*echo.Context) error {
	return echo.NewHTTPError(http.StatusPaymentRequired, "declined")
}

func (*echo5) crash(*echo.Context) error { panic("crash") }

type echoCharge struct {
	ID     string `json:"id" xml:"id" param:"id"`
	Amount int    `json:"amount" xml:"amount"`
}

// json answers with what it has bound: the path and the body.
func (*echo5) json(c *echo.Context) error {
	var charge echoCharge
	if err := c.Bind(&charge); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, charge)
}

func (d *echo5) answers() {
	d.way(asJSON, "c.JSON(201, charge)", replayed, d.json)
	d.way(asJSON, "c.JSONPretty", replayed, func(c *echo.Context) error {
		return c.JSONPretty(http.StatusCreated, echoCharge{"1", 4200}, "  ")
	})
	d.way(asJSON, "c.JSONBlob", replayed, func(c *echo.Context) error {
		return c.JSONBlob(http.StatusCreated, []byte(`{"id":"1"}`))
	})
	d.way(asJSON, "c.JSONP", replayed, func(c *echo.Context) error {
		return c.JSONP(http.StatusCreated, "callback", echoCharge{"1", 4200})
	})
	d.way(asJSON, "json.NewEncoder(c.Response())", replayed, func(c *echo.Context) error {
		c.Response().Header().Set("Content-Type", "application/json")
		c.Response().WriteHeader(http.StatusCreated)
		_, err := io.WriteString(c.Response(), `{"id":"1"}`)
		return err
	})
	d.way(asString, "c.String", replayed, func(c *echo.Context) error { return c.String(http.StatusCreated, receipt) })
	d.way(asString, "c.HTML", replayed, func(c *echo.Context) error { return c.HTML(http.StatusOK, "<b>charged</b>") })
	d.way(asString, "c.XML", replayed, func(c *echo.Context) error {
		return c.XML(http.StatusCreated, echoCharge{"1", 4200})
	})
	d.way(asString, "c.Blob", replayed, func(c *echo.Context) error {
		return c.Blob(http.StatusOK, "text/csv", []byte("a,b"))
	})
	d.way(asString, "c.Render", replayed, func(c *echo.Context) error {
		return c.Render(http.StatusCreated, "charge", receipt)
	})
	d.way(asString, "c.Response().Before and After", replayed, func(c *echo.Context) error {
		response, err := echo.UnwrapResponse(c.Response())
		if err != nil {
			return err
		}
		response.Before(func() { c.Response().Header().Set("X-Before", "1") })
		response.After(func() { c.Response().Header().Set("X-After", "too late") })
		return c.String(http.StatusOK, receipt)
	})
	d.way(asFile, "c.File", replayed, func(c *echo.Context) error { return c.File("go.mod") })
	d.way(asFile, "c.Attachment", replayed, func(c *echo.Context) error { return c.Attachment("go.mod", "receipt") })
	d.way(asFile, "c.Inline", replayed, func(c *echo.Context) error { return c.Inline("go.mod", "receipt") })
	d.way(asFile, "c.File of a file that is missing", replayed, func(c *echo.Context) error { return c.File("none") })
	d.way(redirecting, `c.Redirect(303, "/done")`, replayed, func(c *echo.Context) error {
		return c.Redirect(http.StatusSeeOther, "/done")
	})
	d.way(streaming, "c.Stream", replayed, func(c *echo.Context) error {
		return c.Stream(http.StatusOK, "text/plain", strings.NewReader(strings.Repeat("charged ", 10_000)))
	})
	d.way(streaming, "Flush", replayed, func(c *echo.Context) error {
		for range 3 {
			_, _ = io.WriteString(c.Response(), "charged ")
			_ = http.NewResponseController(c.Response()).Flush()
		}
		return nil
	})
	d.way(statusOnly, "c.NoContent(204)", replayed, func(c *echo.Context) error {
		return c.NoContent(http.StatusNoContent)
	})
	d.way(statusOnly, "c.NoContent(402)", replayed, func(c *echo.Context) error {
		return c.NoContent(http.StatusPaymentRequired)
	})
	d.way(silently, "return nil", replayed, func(c *echo.Context) error { return nil })
	d.add(leaving, "the handler goes on", replayed, echoLayers{}, func(s *stage, c *echo.Context) error {
		if err := s.wait(c.Request().Context()); err != nil {
			return err
		}
		return d.json(c)
	})
}

func (d *echo5) layers() {
	tooLate := func(c *echo.Context) error { return tooLong(c.Request().Context()) }
	d.layer(timingOut, "middleware.ContextTimeout", runsAgain, tooLate, middleware.ContextTimeout(shortly))
	d.layer(timingOut, "middleware.ContextTimeout, return another error", runsAgain,
		func(c *echo.Context) error { return errors.Join(echo.ErrBadGateway, tooLate(c)) },
		middleware.ContextTimeout(shortly))
	d.layer(recovering, "middleware.Recover", runsAgain, d.crash, middleware.Recover())
	handled := func(name string, handler echo.HTTPErrorHandler) {
		d.add(errorHandler, name, replayed, echoLayers{errors: handler}, ignore(d.declined))
	}
	handled("e.HTTPErrorHandler", func(c *echo.Context, err error) {
		if r, _ := echo.UnwrapResponse(c.Response()); r != nil && r.Committed {
			return
		}
		_ = c.String(echo.StatusCode(err), err.Error())
	})
	handled("e.HTTPErrorHandler that does not look for an answer", func(c *echo.Context, err error) {
		_ = c.String(echo.StatusCode(err), err.Error())
	})
	logger := middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		HandleError: true, LogValuesFunc: func(*echo.Context, middleware.RequestLoggerValues) error { return nil },
	})
	d.layer(errorHandler, "middleware.RequestLogger with HandleError", replayed, d.declined, logger)
	gzip := []echo.MiddlewareFunc{middleware.Gzip()}
	d.add(compressOut, "middleware.Gzip", replayed, echoLayers{outer: gzip}, ignore(d.json))
	d.add(compressIn, "middleware.Gzip", replayed, echoLayers{inner: gzip}, ignore(d.json))
	d.add(compressIn, "middleware.Gzip, an error", replayed, echoLayers{inner: gzip}, ignore(d.declined))
}

// echoLayers are what is around a handler.
type echoLayers struct {
	outer, inner []echo.MiddlewareFunc
	errors       echo.HTTPErrorHandler
}

func ignore(h echo.HandlerFunc) func(*stage, *echo.Context) error {
	return func(_ *stage, c *echo.Context) error { return h(c) }
}

func (d *echo5) way(k kind, name string, retry fate, h echo.HandlerFunc) {
	d.add(k, name, retry, echoLayers{}, ignore(h))
}

// layer adds two ways: with a layer outside of the guard, and inside.
func (d *echo5) layer(k kind, name string, retry fate, h echo.HandlerFunc, layer echo.MiddlewareFunc) {
	d.add(k, name+" outside", retry, echoLayers{outer: []echo.MiddlewareFunc{layer}}, ignore(h))
	d.add(k, name+" inside", retry, echoLayers{inner: []echo.MiddlewareFunc{layer}}, ignore(h))
}

func (d *echo5) add(k kind, name string, retry fate, l echoLayers, h func(*stage, *echo.Context) error) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		e := newEcho()
		if l.errors != nil {
			e.HTTPErrorHandler = l.errors
		}
		e.Use(l.outer...)
		var layers []echo.MiddlewareFunc
		if s.guarded {
			layers = append(layers, d.mount(s.middleware(t)))
		}
		e.POST("/charges/:id", func(c *echo.Context) error {
			s.enter()
			return h(s, c)
		}, append(layers, l.inner...)...)
		return s.listen(t, e) + "/charges/1"
	}})
}

func newEcho() *echo.Echo {
	e := echo.New()
	e.Logger = slog.New(slog.DiscardHandler)
	e.Renderer = &echo.TemplateRenderer{Template: template.Must(template.New("charge").Parse("<b>{{.}}</b>"))}
	return e
}

// The errors of guarded handlers are answered inside of Gzip, so they are compressed too.
func TestEchoGzipOfAnError(t *testing.T) {
	t.Parallel()
	d := &echo5{mount: echoidempotency.Middleware}
	d.add(compressOut, "", replayed, echoLayers{outer: []echo.MiddlewareFunc{middleware.Gzip()}}, ignore(d.declined))
	bare, guarded := newStage(t, false), newStage(t, true)
	want := knock(t.Context(), d.ways[0].serve(t, bare), "")
	require.False(t, want.compressed)
	url := d.ways[0].serve(t, guarded)
	first := knock(t.Context(), url, "key")
	require.True(t, first.compressed)
	require.Equal(t, []string{want.status, want.body}, []string{first.status, first.body})
	retry := knock(t.Context(), url, "key")
	require.True(t, retry.replayed())
	require.Equal(t, first, retry.unmarked())
}

// Without the adapter, what a handler writes is replayed as well. Its errors are answered by echo, and are not stored.
func TestEchoWrapMiddleware(t *testing.T) {
	t.Parallel()
	d := &echo5{mount: func(m guardian) echo.MiddlewareFunc { return echo.WrapMiddleware(m.Handler) }}
	d.errors()
	d.answers()
	const missing, after = "c.File of a file that is missing", "return err after an answer"
	for _, w := range d.ways {
		if w.kind == silently || w.kind == erring && w.name != after || w.name == missing {
			w.retry = runsAgain
		}
		t.Run(w.name, w.test)
	}
}
