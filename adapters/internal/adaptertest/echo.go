package adaptertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// EchoContext has the methods of a context of echo that the tests use. All versions of echo have these methods.
type EchoContext interface {
	Request() *http.Request
	Param(name string) string
	Get(key string) any
	Set(key string, value any)
	FormFile(name string) (*multipart.FileHeader, error)
	String(status int, body string) error
	JSON(status int, body any) error
	NoContent(status int) error
}

// EchoHandler is a handler of a version of echo.
type EchoHandler[C EchoContext] = func(c C) error

// EchoMiddleware is a middleware of a version of echo.
type EchoMiddleware[C EchoContext] = func(next EchoHandler[C]) EchoHandler[C]

// EchoApp is an app of a version of echo.
type EchoApp[C EchoContext] interface {
	http.Handler
	OnError(handler func(c C, err error))
	Use(middleware ...EchoMiddleware[C])
	POST(path string, handler EchoHandler[C], middleware ...EchoMiddleware[C])
	PUT(path string, handler EchoHandler[C])
	// POSTInGroup adds a route to a new group with the middleware group.
	POSTInGroup(prefix string, group EchoMiddleware[C], path string, handler EchoHandler[C], middleware ...EchoMiddleware[C])
}

// EchoResponse is the response of a context.
type EchoResponse struct {
	http.ResponseWriter
	Status    int
	Size      int64
	Committed bool
	Before    func(hook func())
}

// Echo is a version of echo, with its adapter.
type Echo[C EchoContext] struct {
	New       func() EchoApp[C]
	Guard     func(guard Guard) EchoMiddleware[C]
	Context   func(r *http.Request) C
	Response  func(c C) EchoResponse
	HTTPError func(status int, message string) error
	NotFound  error             // of echo itself
	BodyLimit EchoMiddleware[C] // of 4 bytes
}

// RunEcho tests the adapter of a version of echo.
func RunEcho[C EchoContext](t *testing.T, e Echo[C]) {
	for name, test := range map[string]func(t *testing.T){
		"context of the request":              e.testContext,
		"outer middleware sees the answer":    e.testOuterMiddleware,
		"nothing is written after the answer": e.testNothingAfterTheAnswer,
		"an error that echo does not answer":  e.testUnansweredError,
		"hooks of outer middleware":           e.testHooks,
		"mounting":                            e.testMounting,
		"no route":                            e.testNoRoute,
		"without a key nothing changes":       e.testWithoutKey,
		"a form is left to the server":        e.testForm,
		"body limit":                          e.testBodyLimit,
		"a claim that is lost":                e.testClaimLost,
		"upload":                              e.testUpload,
		"upload without a key":                e.testUploadWithoutKey,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// newSingleGuard returns a guard with a single user.
func (e Echo[C]) newSingleGuard(t *testing.T) EchoMiddleware[C] {
	return e.Guard(NewGuard(t, idempotency.SingleUser, idempotency.Options{}))
}

func (e Echo[C]) testContext(t *testing.T) {
	app := e.New()
	app.Use(func(next EchoHandler[C]) EchoHandler[C] {
		return func(c C) error {
			c.Set("user", c.Request().Header.Get("Idempotency-Key"))
			return next(c)
		}
	})
	user := func(r *http.Request) (string, error) {
		name, _ := e.Context(r).Get("user").(string)
		if name == "nobody" {
			return "", nil
		}
		return name, nil
	}
	app.POST("/:id", func(c C) error {
		assert.True(t, any(c) == any(e.Context(c.Request())))
		_, guarded := idempotency.FromContext(c.Request().Context())
		assert.True(t, guarded)
		response := e.Response(c)
		assert.Equal(t, http.StatusOK, response.Status) // the status before the first write
		assert.False(t, response.Committed)
		return c.String(http.StatusCreated, c.Param("id")+c.Get("user").(string))
	}, e.Guard(NewGuard(t, user, idempotency.Options{
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, refusal *idempotency.Error) {
			_ = e.Context(r).JSON(refusal.Status, map[string]string{"error": refusal.Code})
		},
	})))
	send := Serve(t, app)
	first := send("/1", "k", "a")
	require.Equal(t, "1k", first.Body)
	RequireReplay(t, first, send("/1", "k", "a"))
	require.Equal(t, Answer{
		Status: http.StatusUnauthorized, Body: `{"error":"user-unknown"}` + "\n",
		Header: http.Header{"Content-Type": {"application/json"}, "Content-Length": {"25"}},
	}, send("/1", "nobody", "a"))
	require.Equal(t, `{"error":"key-reused"}`+"\n", send("/1", "k", "b").Body)
	require.Nil(t, e.Context(httptest.NewRequest(http.MethodPost, "/", nil)))
}

// outerView is the state that outer middleware sees after the guard has returned.
type outerView struct {
	status       int
	bodySize     int64
	returnedErr  error
	contextValue any
}

func (e Echo[C]) testOuterMiddleware(t *testing.T) {
	failure := e.HTTPError(http.StatusPaymentRequired, "declined")
	for name, row := range map[string]struct {
		handler EchoHandler[C]
		first   outerView
		retry   outerView
	}{
		"an answer": {
			func(c C) error { c.Set("inside", 1); return c.String(http.StatusCreated, "charged") },
			outerView{http.StatusCreated, 7, nil, 1}, outerView{http.StatusCreated, 7, nil, nil},
		},
		"a status": {
			func(c C) error { return c.NoContent(http.StatusNoContent) },
			outerView{status: http.StatusNoContent}, outerView{status: http.StatusNoContent},
		},
		"an error": {
			func(C) error { return failure },
			outerView{status: http.StatusPaymentRequired, bodySize: 23, returnedErr: failure},
			outerView{status: http.StatusPaymentRequired, bodySize: 23},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := make(chan outerView, 2)
			app := e.New()
			app.Use(func(next EchoHandler[C]) EchoHandler[C] {
				return func(c C) error {
					request := c.Request()
					err := next(c)
					response := e.Response(c)
					assert.True(t, response.Committed)
					assert.Same(t, request, c.Request())
					log <- outerView{response.Status, response.Size, err, c.Get("inside")}
					return err
				}
			})
			app.POST("/", row.handler, e.newSingleGuard(t))
			send := Serve(t, app)
			first := send("/", "k", "")
			RequireReplay(t, first, send("/", "k", ""))
			require.Equal(t, row.first, <-log)
			require.Equal(t, row.retry, <-log)
		})
	}
}

// After the guarded handler has answered, neither an error handler nor middleware that gets the error can add to the
// answer.
func (e Echo[C]) testNothingAfterTheAnswer(t *testing.T) {
	app := e.New()
	app.OnError(func(c C, err error) { _ = c.String(http.StatusPaymentRequired, err.Error()) })
	app.Use(func(next EchoHandler[C]) EchoHandler[C] {
		return func(c C) error {
			err := next(c)
			if err != nil {
				response := e.Response(c).ResponseWriter
				response.WriteHeader(http.StatusTeapot)
				_ = http.NewResponseController(response).Flush()
			}
			return err
		}
	})
	app.POST("/", func(C) error { return errors.New("declined") }, e.newSingleGuard(t))
	send := Serve(t, app)
	first := send("/", "k", "")
	require.Equal(t, "declined", first.Body)
	require.Equal(t, http.StatusPaymentRequired, first.Status)
	retry := send("/", "k", "")
	require.True(t, retry.Replayed)
	require.Equal(t, first.Body, retry.Body)
}

// Outer middleware may answer an error that the error handler of echo leaves unanswered. The answer is not stored.
func (e Echo[C]) testUnansweredError(t *testing.T) {
	app := e.New()
	app.OnError(func(C, error) {})
	app.Use(e.answerErrors(http.StatusPaymentRequired))
	runs := 0
	app.POST("/", func(C) error { runs++; return errors.New("declined") }, e.newSingleGuard(t))
	send := Serve(t, app)
	want := send("/", "", "")
	require.Equal(t, "declined", want.Body)
	require.Equal(t, want, send("/", "k", ""))
	require.Equal(t, want, send("/", "k", ""))
	require.Equal(t, 3, runs)
}

// answerErrors returns middleware that answers errors with status and the text of the error.
func (e Echo[C]) answerErrors(status int) EchoMiddleware[C] {
	return func(next EchoHandler[C]) EchoHandler[C] {
		return func(c C) error {
			if err := next(c); err != nil {
				return c.String(status, err.Error())
			}
			return nil
		}
	}
}

func (e Echo[C]) testHooks(t *testing.T) {
	app := e.New()
	runs := 0
	app.Use(func(next EchoHandler[C]) EchoHandler[C] {
		return func(c C) error {
			runs++
			request, response := fmt.Sprint(runs), e.Response(c)
			response.Before(func() { response.Header().Set("X-Fresh", request) })
			return next(c)
		}
	})
	app.POST("/", func(c C) error { return c.String(http.StatusOK, "charged") }, e.newSingleGuard(t))
	send := Serve(t, app)
	require.Equal(t, "1", send("/", "k", "").Header.Get("X-Fresh"))
	retry := send("/", "k", "")
	require.True(t, retry.Replayed)
	require.Equal(t, "2", retry.Header.Get("X-Fresh"))
}

func (e Echo[C]) testMounting(t *testing.T) {
	for name, mount := range map[string]func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]){
		"all routes": func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]) { app.Use(m); app.POST("/v1/p", h) },
		"a group":    func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]) { app.POSTInGroup("/v1", m, "/p", h) },
		"a route":    func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]) { app.POST("/v1/p", h, m) },
		"twice":      func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]) { app.POSTInGroup("/v1", m, "/p", h, m) },
		"twice with an error": func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]) {
			app.POSTInGroup("/v1", m, "/p", func(c C) error { return errors.Join(h(c), errors.New("no log")) }, m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			CheckMounting(t, func(guard Guard, run func()) http.Handler {
				app := e.New()
				mount(app, e.Guard(guard), func(c C) error {
					run()
					return c.String(http.StatusCreated, "charged")
				})
				return app
			})
		})
	}
}

// A 404 or 405 by echo itself is not stored. The same answer by a handler is, and so is an answer by middleware for a path
// without a route, as of a proxy.
func (e Echo[C]) testNoRoute(t *testing.T) {
	for name, mount := range map[string]func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]){
		"all routes": func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]) { app.Use(m); app.POST("/v1/known", h) },
		"a group":    func(app EchoApp[C], m EchoMiddleware[C], h EchoHandler[C]) { app.POSTInGroup("/v1", m, "/known", h) },
	} {
		app, guard := e.New(), e.newSingleGuard(t)
		answerProxied := func(next EchoHandler[C]) EchoHandler[C] {
			return func(c C) error {
				if c.Request().URL.Path == "/v1/proxied" {
					return c.String(http.StatusNotFound, "by the other service")
				}
				return next(c)
			}
		}
		notFound := func(C) error { return e.NotFound }
		mount(app, func(next EchoHandler[C]) EchoHandler[C] { return guard(answerProxied(next)) }, notFound)
		app.PUT("/v1/put", notFound)
		send := Serve(t, app)
		for path, isReplayed := range map[string]bool{
			"/v1/known": true, "/v1/proxied": true, "/v1/unknown": false, "/v1/put": false,
		} {
			first := send(path, "k", "")
			require.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, first.Status, "%s: %s", name, path)
			require.Equal(t, isReplayed, send(path, "k", "").Replayed, "%s: %s", name, path)
		}
	}
}

func (e Echo[C]) testWithoutKey(t *testing.T) {
	app := e.New()
	var request *http.Request
	var response http.ResponseWriter
	app.Use(func(next EchoHandler[C]) EchoHandler[C] {
		return func(c C) error {
			request, response = c.Request(), e.Response(c).ResponseWriter
			return next(c)
		}
	})
	app.POST("/", func(c C) error {
		assert.Same(t, request, c.Request())
		assert.Same(t, response, e.Response(c).ResponseWriter)
		return e.HTTPError(http.StatusForbidden, "no")
	}, e.newSingleGuard(t))
	require.Equal(t, http.StatusForbidden, Serve(t, app)("/", "", "").Status)
}

func (e Echo[C]) testForm(t *testing.T) {
	app := e.New()
	app.POST("/", func(c C) error {
		file, err := c.FormFile("f")
		if err != nil {
			return err
		}
		return c.String(http.StatusCreated, file.Filename)
	}, e.newSingleGuard(t))
	CheckForm(t, app)
}

func (e Echo[C]) testBodyLimit(t *testing.T) {
	for name, layers := range map[string]func(m EchoMiddleware[C]) []EchoMiddleware[C]{
		"outside": func(m EchoMiddleware[C]) []EchoMiddleware[C] { return []EchoMiddleware[C]{e.BodyLimit, m} },
		"inside":  func(m EchoMiddleware[C]) []EchoMiddleware[C] { return []EchoMiddleware[C]{m, e.BodyLimit} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app := e.New()
			app.POST("/", func(c C) error { return c.String(http.StatusCreated, "charged") }, layers(e.newSingleGuard(t))...)
			send := Serve(t, app)
			require.Equal(t, http.StatusCreated, send("/", "k", "1234").Status)
			first, retry := send("/", "l", "12345"), send("/", "l", "12345")
			require.Equal(t, http.StatusRequestEntityTooLarge, first.Status)
			require.Equal(t, name == "inside", retry.Replayed)
			require.Equal(t, first.Body, retry.Body)
		})
	}
}

// After the loss of a claim, the client gets a refusal regardless of the result of the handler.
func (e Echo[C]) testClaimLost(t *testing.T) {
	CheckClaimLost(t, func(guard Guard) http.Handler {
		var once sync.Once
		app := e.New()
		app.OnError(func(c C, err error) { _ = c.String(http.StatusTeapot, err.Error()) })
		app.POST("/", func(c C) error {
			ctx := c.Request().Context()
			once.Do(func() { <-ctx.Done() })
			assert.ErrorIs(t, context.Cause(ctx), idempotency.ErrClaimLost)
			return ctx.Err()
		}, e.Guard(guard))
		return app
	})
}

func (e Echo[C]) testUpload(t *testing.T) {
	CheckUpload(t, map[string]EchoHandler[C]{
		"returns the error": func(c C) error {
			n, err := io.Copy(io.Discard, c.Request().Body)
			if err != nil {
				return err
			}
			return c.String(http.StatusCreated, fmt.Sprint(n))
		},
		"ignores the error": func(c C) error {
			n, _ := io.Copy(io.Discard, c.Request().Body)
			return c.String(http.StatusCreated, fmt.Sprint(n))
		},
		"answers the error, and returns it": func(c C) error {
			if _, err := io.Copy(io.Discard, c.Request().Body); err != nil {
				return errors.Join(c.String(http.StatusUnprocessableEntity, "the scan is not whole"), err)
			}
			return c.String(http.StatusCreated, "archived")
		},
		"reads nothing": func(c C) error { return c.NoContent(http.StatusNoContent) },
		"is silent":     func(C) error { return nil },
	}, func(guard Guard, handler EchoHandler[C], run func()) http.Handler {
		app := e.New()
		app.POST("/scans", func(c C) error { run(); return handler(c) }, e.Guard(guard))
		return app
	})
}

func (e Echo[C]) testUploadWithoutKey(t *testing.T) {
	CheckUploadWithoutKey(t, func(guard Guard) http.Handler {
		app := e.New()
		app.POST("/scans", func(c C) error {
			body, err := io.ReadAll(c.Request().Body)
			return errors.Join(err, fmt.Errorf("read %q of %d", body, c.Request().ContentLength))
		}, e.answerErrors(http.StatusTeapot), e.Guard(guard))
		return app
	})
}
