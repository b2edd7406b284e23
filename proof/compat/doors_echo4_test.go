package compat_test

import (
	"errors"
	"html/template"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
)

// echo4 is the door of echo v4.
type echo4 struct {
	door
	mount func(guardian) echo.MiddlewareFunc
}

func echo4Door() door {
	d := &echo4{door{name: "echo v4"}, echo4idempotency.Middleware}
	d.errors()
	d.answers()
	d.layers()
	return d.door
}

func (d *echo4) errors() {
	d.way(erring, `return echo.NewHTTPError(402, "declined")`, replayed, d.declined)
	d.way(erring, `return echo.NewHTTPError(402, "declined").SetInternal(err)`, replayed, func(c echo.Context) error {
		return echo.NewHTTPError(http.StatusPaymentRequired, "declined").SetInternal(errors.New("no money"))
	})
	d.way(erring, `return echo.NewHTTPError(503, "down")`, runsAgain, func(c echo.Context) error {
		return echo.NewHTTPError(http.StatusServiceUnavailable, "down")
	})
	d.way(erring, "return echo.ErrTooManyRequests", runsAgain, func(c echo.Context) error {
		return echo.ErrTooManyRequests
	})
	d.way(erring, "return err", runsAgain, func(c echo.Context) error { return errors.New("no disk") })
	d.way(erring, "return err after an answer", replayed, func(c echo.Context) error {
		return errors.Join(c.String(http.StatusCreated, receipt), errors.New("no log"))
	})
	d.way(erring, "return err with fields set", replayed, func(c echo.Context) error {
		c.Response().Header().Set("X-Reason", "poor")
		return echo.ErrForbidden
	})
	d.way(erring, "return c.Bind(&strings)", replayed, func(c echo.Context) error {
		var into []string
		return c.Bind(&into)
	})
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain, func(c echo.Context) error {
		panic(http.ErrAbortHandler)
	})
	d.way(panicking, "panic", runsAgain, d.crash)
}

func (*echo4) declined(echo.Context) error {
	return echo.NewHTTPError(http.StatusPaymentRequired, "declined")
}

func (*echo4) crash(echo.Context) error { panic("crash") }

type echo4Charge struct {
	ID     string `json:"id" xml:"id" param:"id"`
	Amount int    `json:"amount" xml:"amount"`
}

// json answers with what it has bound: the path and the body.
func (*echo4) json(c echo.Context) error {
	var charge echo4Charge
	if err := c.Bind(&charge); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, charge)
}

func (d *echo4) answers() {
	d.way(asJSON, "c.JSON(201, charge)", replayed, d.json)
	d.way(asJSON, "c.JSONPretty", replayed, func(c echo.Context) error {
		return c.JSONPretty(http.StatusCreated, echo4Charge{"1", 4200}, "  ")
	})
	d.way(asJSON, "c.JSONBlob", replayed, func(c echo.Context) error {
		return c.JSONBlob(http.StatusCreated, []byte(`{"id":"1"}`))
	})
	d.way(asJSON, "c.JSONP", replayed, func(c echo.Context) error {
		return c.JSONP(http.StatusCreated, "callback", echo4Charge{"1", 4200})
	})
	d.way(asJSON, "json.NewEncoder(c.Response())", replayed, func(c echo.Context) error {
		c.Response().Header().Set("Content-Type", "application/json")
		c.Response().WriteHeader(http.StatusCreated)
		_, err := io.WriteString(c.Response(), `{"id":"1"}`)
		return err
	})
	d.way(asString, "c.String", replayed, func(c echo.Context) error { return c.String(http.StatusCreated, receipt) })
	d.way(asString, "c.HTML", replayed, func(c echo.Context) error { return c.HTML(http.StatusOK, "<b>charged</b>") })
	d.way(asString, "c.XML", replayed, func(c echo.Context) error {
		return c.XML(http.StatusCreated, echo4Charge{"1", 4200})
	})
	d.way(asString, "c.Blob", replayed, func(c echo.Context) error {
		return c.Blob(http.StatusOK, "text/csv", []byte("a,b"))
	})
	d.way(asString, "c.Render", replayed, func(c echo.Context) error {
		return c.Render(http.StatusCreated, "charge", receipt)
	})
	d.way(asString, "c.Response().Before and After", replayed, func(c echo.Context) error {
		response := c.Response()
		response.Before(func() { c.Response().Header().Set("X-Before", "1") })
		response.After(func() { c.Response().Header().Set("X-After", "too late") })
		return c.String(http.StatusOK, receipt)
	})
	d.way(asFile, "c.File", replayed, func(c echo.Context) error { return c.File("go.mod") })
	d.way(asFile, "c.Attachment", replayed, func(c echo.Context) error { return c.Attachment("go.mod", "receipt") })
	d.way(asFile, "c.Inline", replayed, func(c echo.Context) error { return c.Inline("go.mod", "receipt") })
	d.way(asFile, "c.File of a file that is missing", replayed, func(c echo.Context) error { return c.File("none") })
	d.way(redirecting, `c.Redirect(303, "/done")`, replayed, func(c echo.Context) error {
		return c.Redirect(http.StatusSeeOther, "/done")
	})
	d.way(streaming, "c.Stream", replayed, func(c echo.Context) error {
		return c.Stream(http.StatusOK, "text/plain", strings.NewReader(strings.Repeat("charged ", 10_000)))
	})
	d.way(streaming, "Flush", replayed, func(c echo.Context) error {
		for range 3 {
			_, _ = io.WriteString(c.Response(), "charged ")
			_ = http.NewResponseController(c.Response()).Flush()
		}
		return nil
	})
	d.way(statusOnly, "c.NoContent(204)", replayed, func(c echo.Context) error {
		return c.NoContent(http.StatusNoContent)
	})
	d.way(statusOnly, "c.NoContent(402)", replayed, func(c echo.Context) error {
		return c.NoContent(http.StatusPaymentRequired)
	})
	d.way(silently, "return nil", replayed, func(c echo.Context) error { return nil })
	d.add(leaving, "the handler goes on", replayed, echo4Layers{}, func(s *stage, c echo.Context) error {
		if err := s.wait(c.Request().Context()); err != nil {
			return err
		}
		return d.json(c)
	})
}

func (d *echo4) layers() {
	tooLate := func(c echo.Context) error { return tooLong(c.Request().Context()) }
	d.layer(timingOut, "middleware.ContextTimeout", runsAgain, tooLate, middleware.ContextTimeout(shortly))
	d.layer(timingOut, "middleware.ContextTimeout, return another error", runsAgain,
		func(c echo.Context) error { return errors.Join(echo.ErrBadGateway, tooLate(c)) },
		middleware.ContextTimeout(shortly))
	//lint:ignore SA1019 services may still have it
	timeout := middleware.TimeoutWithConfig(middleware.TimeoutConfig{Timeout: long})
	d.layer(erring, "return echo.NewHTTPError(402, \"declined\"), deprecated middleware.Timeout", replayed,
		d.declined, timeout)
	d.layer(recovering, "middleware.Recover", runsAgain, d.crash, middleware.Recover())
	handled := func(name string, handler echo.HTTPErrorHandler) {
		d.add(errorHandler, name, replayed, echo4Layers{errors: handler}, ignore4(d.declined))
	}
	handled("e.HTTPErrorHandler", func(err error, c echo.Context) {
		if !c.Response().Committed {
			_ = c.String(http.StatusPaymentRequired, err.Error())
		}
	})
	handled("e.HTTPErrorHandler that does not look for an answer", func(err error, c echo.Context) {
		_ = c.String(http.StatusPaymentRequired, err.Error())
	})
	logger := middleware.RequestLoggerWithConfig(middleware.RequestLoggerConfig{
		HandleError: true, LogValuesFunc: func(echo.Context, middleware.RequestLoggerValues) error { return nil },
	})
	d.layer(errorHandler, "middleware.RequestLogger with HandleError", replayed, d.declined, logger)
	gzip := []echo.MiddlewareFunc{middleware.Gzip()}
	d.add(compressOut, "middleware.Gzip", replayed, echo4Layers{outer: gzip}, ignore4(d.json))
	d.add(compressIn, "middleware.Gzip", replayed, echo4Layers{inner: gzip}, ignore4(d.json))
	d.add(compressIn, "middleware.Gzip, an error", replayed, echo4Layers{inner: gzip}, ignore4(d.declined))
}

// echo4Layers are what is around a handler.
type echo4Layers struct {
	outer, inner []echo.MiddlewareFunc
	errors       echo.HTTPErrorHandler
}

func ignore4(h echo.HandlerFunc) func(*stage, echo.Context) error {
	return func(_ *stage, c echo.Context) error { return h(c) }
}

func (d *echo4) way(k kind, name string, retry fate, h echo.HandlerFunc) {
	d.add(k, name, retry, echo4Layers{}, ignore4(h))
}

// layer adds two ways: with a layer outside of the guard, and inside.
func (d *echo4) layer(k kind, name string, retry fate, h echo.HandlerFunc, layer echo.MiddlewareFunc) {
	d.add(k, name+" outside", retry, echo4Layers{outer: []echo.MiddlewareFunc{layer}}, ignore4(h))
	d.add(k, name+" inside", retry, echo4Layers{inner: []echo.MiddlewareFunc{layer}}, ignore4(h))
}

func (d *echo4) add(k kind, name string, retry fate, l echo4Layers, h func(*stage, echo.Context) error) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		e := newEcho4()
		if l.errors != nil {
			e.HTTPErrorHandler = l.errors
		}
		e.Use(l.outer...)
		var layers []echo.MiddlewareFunc
		if s.guarded {
			layers = append(layers, d.mount(s.middleware(t)))
		}
		e.POST("/charges/:id", func(c echo.Context) error {
			s.enter()
			return h(s, c)
		}, append(layers, l.inner...)...)
		return s.listen(t, e) + "/charges/1"
	}})
}

func newEcho4() *echo.Echo {
	e := echo.New()
	e.Logger.SetOutput(io.Discard)
	e.Renderer = &echo.TemplateRenderer{Template: template.Must(template.New("charge").Parse("<b>{{.}}</b>"))}
	return e
}

// The errors of guarded handlers are answered inside of Gzip, so they are compressed too.
func TestEcho4GzipOfAnError(t *testing.T) {
	t.Parallel()
	d := &echo4{mount: echo4idempotency.Middleware}
	d.add(compressOut, "", replayed, echo4Layers{outer: []echo.MiddlewareFunc{middleware.Gzip()}}, ignore4(d.declined))
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
func TestEcho4WrapMiddleware(t *testing.T) {
	t.Parallel()
	d := &echo4{mount: func(m guardian) echo.MiddlewareFunc { return echo.WrapMiddleware(m.Handler) }}
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
