package compat_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// echoContext has the methods of a handler's context in both versions of echo.
type echoContext interface {
	Attachment(file, name string) error
	Bind(into any) error
	Blob(status int, media string, body []byte) error
	File(file string) error
	HTML(status int, body string) error
	Inline(file, name string) error
	JSON(status int, value any) error
	JSONBlob(status int, body []byte) error
	JSONP(status int, callback string, value any) error
	JSONPretty(status int, value any, indent string) error
	NoContent(status int) error
	Redirect(status int, url string) error
	Render(status int, name string, data any) error
	Request() *http.Request
	Stream(status int, media string, body io.Reader) error
	String(status int, body string) error
	XML(status int, value any) error
}

// echoFramework is the door of a version of echo, with the context type and the middleware type of the version.
type echoFramework[C echoContext, M any] struct {
	door
	mount func(guardian) M
	serve func(mount []M, l echoLayers[C, M], h func(C) error) http.Handler // serves h at /charges/:id

	response  func(C) http.ResponseWriter
	committed func(C) bool
	hooks     func(c C, before, after func()) error

	failure                        func(status int, message string) error
	wrapping                       string // the name of wrap
	wrap                           func(error) error
	tooMany, forbidden, badGateway error

	contextTimeout, recovery, logger, gzip M
	deprecated                             []M // deprecated timeout middlewares
}

// echoLayers are the layers around a handler.
type echoLayers[C, M any] struct {
	outer, inner []M
	errors       func(C, error)
}

func (d *echoFramework[C, M]) open() door {
	d.errors()
	d.answers()
	d.layers()
	return d.door
}

func (d *echoFramework[C, M]) errors() {
	d.way(erring, `return echo.NewHTTPError(402, "declined")`, replayed, d.declined)
	d.way(erring, d.wrapping, replayed, func(C) error { return d.wrap(d.failure(http.StatusPaymentRequired, "declined")) })
	d.way(erring, `return echo.NewHTTPError(503, "down")`, runsAgain, func(c C) error {
		return d.failure(http.StatusServiceUnavailable, "down")
	})
	d.way(erring, "return echo.ErrTooManyRequests", runsAgain, func(c C) error {
		return d.tooMany
	})
	d.way(erring, "return err", runsAgain, func(c C) error { return errors.New("no disk") })
	d.way(erring, "return err after an answer", replayed, func(c C) error {
		return errors.Join(c.String(http.StatusCreated, receipt), errors.New("no log"))
	})
	d.way(erring, "return err with fields set", replayed, func(c C) error {
		d.response(c).Header().Set("X-Reason", "poor")
		return d.forbidden
	})
	d.way(erring, "return c.Bind(&strings)", replayed, func(c C) error {
		var into []string
		return c.Bind(&into)
	})
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain, func(c C) error {
		panic(http.ErrAbortHandler)
	})
	d.way(panicking, "panic", runsAgain, d.crash)
}

func (d *echoFramework[C, M]) declined(C) error {
	return d.failure(http.StatusPaymentRequired, "declined")
}

func (d *echoFramework[C, M]) crash(C) error { panic("crash") }

type echoCharge struct {
	ID     string `json:"id" xml:"id" param:"id"`
	Amount int    `json:"amount" xml:"amount"`
}

// json answers with the bound path parameter and body.
func (d *echoFramework[C, M]) json(c C) error {
	var charge echoCharge
	if err := c.Bind(&charge); err != nil {
		return err
	}
	return c.JSON(http.StatusCreated, charge)
}

func (d *echoFramework[C, M]) answers() {
	d.way(asJSON, "c.JSON(201, charge)", replayed, d.json)
	d.way(asJSON, "c.JSONPretty", replayed, func(c C) error {
		return c.JSONPretty(http.StatusCreated, echoCharge{"1", 4200}, "  ")
	})
	d.way(asJSON, "c.JSONBlob", replayed, func(c C) error {
		return c.JSONBlob(http.StatusCreated, []byte(`{"id":"1"}`))
	})
	d.way(asJSON, "c.JSONP", replayed, func(c C) error {
		return c.JSONP(http.StatusCreated, "callback", echoCharge{"1", 4200})
	})
	d.way(asJSON, "json.NewEncoder(c.Response())", replayed, func(c C) error {
		d.response(c).Header().Set("Content-Type", "application/json")
		d.response(c).WriteHeader(http.StatusCreated)
		_, err := io.WriteString(d.response(c), `{"id":"1"}`)
		return err
	})
	d.way(asString, "c.String", replayed, func(c C) error { return c.String(http.StatusCreated, receipt) })
	d.way(asString, "c.HTML", replayed, func(c C) error { return c.HTML(http.StatusOK, "<b>charged</b>") })
	d.way(asString, "c.XML", replayed, func(c C) error {
		return c.XML(http.StatusCreated, echoCharge{"1", 4200})
	})
	d.way(asString, "c.Blob", replayed, func(c C) error {
		return c.Blob(http.StatusOK, "text/csv", []byte("a,b"))
	})
	d.way(asString, "c.Render", replayed, func(c C) error {
		return c.Render(http.StatusCreated, "charge", receipt)
	})
	d.way(asString, "c.Response().Before and After", replayed, func(c C) error {
		err := d.hooks(c, func() { d.response(c).Header().Set("X-Before", "1") },
			func() { d.response(c).Header().Set("X-After", "too late") })
		if err != nil {
			return err
		}
		return c.String(http.StatusOK, receipt)
	})
	d.way(asFile, "c.File", replayed, func(c C) error { return c.File("go.mod") })
	d.way(asFile, "c.Attachment", replayed, func(c C) error { return c.Attachment("go.mod", "receipt") })
	d.way(asFile, "c.Inline", replayed, func(c C) error { return c.Inline("go.mod", "receipt") })
	d.way(asFile, "c.File of a file that is missing", replayed, func(c C) error { return c.File("none") })
	d.way(redirecting, `c.Redirect(303, "/done")`, replayed, func(c C) error {
		return c.Redirect(http.StatusSeeOther, "/done")
	})
	d.way(streaming, "c.Stream", replayed, func(c C) error {
		return c.Stream(http.StatusOK, "text/plain", strings.NewReader(strings.Repeat("charged ", 10_000)))
	})
	d.way(streaming, "Flush", replayed, func(c C) error {
		for range 3 {
			_, _ = io.WriteString(d.response(c), "charged ")
			_ = http.NewResponseController(d.response(c)).Flush()
		}
		return nil
	})
	d.way(statusOnly, "c.NoContent(204)", replayed, func(c C) error {
		return c.NoContent(http.StatusNoContent)
	})
	d.way(statusOnly, "c.NoContent(402)", replayed, func(c C) error {
		return c.NoContent(http.StatusPaymentRequired)
	})
	d.way(silently, "return nil", replayed, func(c C) error { return nil })
	d.add(leaving, "the handler goes on", replayed, echoLayers[C, M]{}, func(s *stage, c C) error {
		if err := s.wait(c.Request().Context()); err != nil {
			return err
		}
		return d.json(c)
	})
}

func (d *echoFramework[C, M]) layers() {
	tooLate := func(c C) error { return tooLong(c.Request().Context()) }
	d.layer(timingOut, "middleware.ContextTimeout", runsAgain, tooLate, d.contextTimeout)
	d.layer(timingOut, "middleware.ContextTimeout, return another error", runsAgain,
		func(c C) error { return errors.Join(d.badGateway, tooLate(c)) }, d.contextTimeout)
	for _, timeout := range d.deprecated {
		d.layer(erring, "return echo.NewHTTPError(402, \"declined\"), deprecated middleware.Timeout", replayed,
			d.declined, timeout)
	}
	d.layer(recovering, "middleware.Recover", runsAgain, d.crash, d.recovery)
	answer := func(c C, err error) { _ = c.String(http.StatusPaymentRequired, err.Error()) }
	careful := echoLayers[C, M]{errors: func(c C, err error) {
		if !d.committed(c) {
			answer(c, err)
		}
	}}
	d.around(errorHandler, "e.HTTPErrorHandler", replayed, careful, d.declined)
	d.around(errorHandler, "e.HTTPErrorHandler that does not look for an answer", replayed,
		echoLayers[C, M]{errors: answer}, d.declined)
	d.layer(errorHandler, "middleware.RequestLogger with HandleError", replayed, d.declined, d.logger)
	outside, inside := echoLayers[C, M]{outer: []M{d.gzip}}, echoLayers[C, M]{inner: []M{d.gzip}}
	d.around(compressOut, "middleware.Gzip", replayed, outside, d.json)
	d.around(compressIn, "middleware.Gzip", replayed, inside, d.json)
	d.around(compressIn, "middleware.Gzip, an error", replayed, inside, d.declined)
}

func (d *echoFramework[C, M]) way(k kind, name string, retry fate, h func(C) error) {
	d.around(k, name, retry, echoLayers[C, M]{}, h)
}

// layer adds two ways: with a layer outside the guard, and with the layer inside.
func (d *echoFramework[C, M]) layer(k kind, name string, retry fate, h func(C) error, layer M) {
	d.around(k, name+" outside", retry, echoLayers[C, M]{outer: []M{layer}}, h)
	d.around(k, name+" inside", retry, echoLayers[C, M]{inner: []M{layer}}, h)
}

func (d *echoFramework[C, M]) around(k kind, name string, retry fate, l echoLayers[C, M], h func(C) error) {
	d.add(k, name, retry, l, func(_ *stage, c C) error { return h(c) })
}

func (d *echoFramework[C, M]) add(k kind, name string, retry fate, l echoLayers[C, M], h func(*stage, C) error) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		var mount []M
		if s.guarded {
			mount = append(mount, d.mount(s.middleware(t)))
		}
		return s.listen(t, d.serve(mount, l, func(c C) error {
			s.enter()
			return h(s, c)
		})) + "/charges/1"
	}})
}

// The errors of guarded handlers are answered inside Gzip, so Gzip compresses these answers as well.
func (d *echoFramework[C, M]) testGzipOfAnError(t *testing.T) {
	t.Parallel()
	d.around(compressOut, "", replayed, echoLayers[C, M]{outer: []M{d.gzip}}, d.declined)
	bare, guarded := newStage(t, false), newStage(t, true)
	want := sendToURL(t.Context(), d.ways[0].serve(t, bare), "")
	require.False(t, want.compressed)
	url := d.ways[0].serve(t, guarded)
	first := sendToURL(t.Context(), url, "key")
	require.True(t, first.compressed)
	require.Equal(t, []string{want.status, want.body}, []string{first.status, first.body})
	retry := sendToURL(t.Context(), url, "key")
	require.True(t, retry.replayed())
	require.Equal(t, first, retry.unmarked())
}

// Without the adapter, the bytes that a handler writes are replayed as well. echo answers the handler's errors, and
// these answers are not stored.
func (d *echoFramework[C, M]) testWithoutAdapter(t *testing.T, wrap func(func(http.Handler) http.Handler) M) {
	t.Parallel()
	d.mount = func(m guardian) M { return wrap(m.Handler) }
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
