package ginidempotency_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	goleak.VerifyTestMain(m)
}

// newMiddleware returns the middleware with a memory store.
func newMiddleware(t *testing.T, user idempotency.UserFunc, opts idempotency.Options) gin.HandlerFunc {
	t.Helper()
	return ginidempotency.Middleware(adaptertest.NewGuard(t, user, opts))
}

// A handler that attaches an error and leaves the status at 200 causes a warning, and so does a handler that fails. A
// client without JSON causes no warning.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for path, wantLog := range map[string]string{"/bind": "", "/error": "wrote nothing", "/fail": "msg=\"idempotency: released\""} {
		var log strings.Builder
		idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
			idempotency.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		e := gin.New()
		e.Use(ginidempotency.Middleware(idem))
		e.POST("/bind", func(c *gin.Context) { _ = c.BindJSON(&struct{ Amount int }{}) })
		e.POST("/error", func(c *gin.Context) { _ = c.Error(errors.New("declined")) })
		e.POST("/fail", func(c *gin.Context) { _ = c.AbortWithError(http.StatusBadGateway, errors.New("no bank")) })
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("no JSON"))
		r.Header.Set("Idempotency-Key", "1")
		e.ServeHTTP(w, r)
		wantStatus := map[string]int{"/bind": http.StatusBadRequest, "/error": http.StatusOK, "/fail": http.StatusBadGateway}
		require.Equal(t, wantStatus[path], w.Code)
		require.Contains(t, log.String(), wantLog)
		require.Equal(t, wantLog == "", log.Len() == 0, log.String())
	}
}

// newSingleUserMiddleware returns the middleware for a single user.
func newSingleUserMiddleware(t *testing.T) gin.HandlerFunc {
	t.Helper()
	return newMiddleware(t, idempotency.SingleUser, idempotency.Options{})
}

// The user function, the error handler and the handler find the context of gin in the request.
func TestContextOfTheRequest(t *testing.T) {
	t.Parallel()
	r := gin.New()
	r.Use(func(c *gin.Context) { c.Set("user", c.GetHeader("Idempotency-Key")) })
	user := func(r *http.Request) (string, error) {
		return strings.TrimPrefix(ginidempotency.Context(r).GetString("user"), "nobody"), nil
	}
	r.POST("/:id", newMiddleware(t, user, idempotency.Options{
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			ginidempotency.Context(r).JSON(e.Status, gin.H{"error": e.Code})
		},
	}), func(c *gin.Context) {
		assert.Same(t, c, ginidempotency.Context(c.Request))
		_, guarded := idempotency.FromContext(c.Request.Context())
		assert.True(t, guarded)
		c.String(http.StatusCreated, c.Param("id")+c.GetString("user"))
	})
	send := adaptertest.Serve(t, r)
	first := send("/1", "k", "a")
	require.Equal(t, "1k", first.Body)
	adaptertest.RequireReplay(t, first, send("/1", "k", "a"))
	refused := send("/1", "nobody", "a")
	require.Equal(t, http.StatusUnauthorized, refused.Status)
	require.Equal(t, `{"error":"user-unknown"}`, refused.Body)
	require.Equal(t, `{"error":"key-reused"}`, send("/1", "k", "b").Body)
	require.Nil(t, ginidempotency.Context(httptest.NewRequest(http.MethodPost, "/", nil)))
}

// The user function finds the context of gin in a question for the state of a key.
func TestStatus(t *testing.T) {
	t.Parallel()
	user := func(r *http.Request) (string, error) { return ginidempotency.Context(r).GetHeader("User"), nil }
	adaptertest.CheckStatus(t, user, func(idem *idempotency.Middleware) http.Handler {
		e := gin.New()
		e.POST("/payments", ginidempotency.Middleware(idem), func(c *gin.Context) { c.String(http.StatusCreated, "charged") })
		e.GET("/status", ginidempotency.Status(idem))
		return e
	})
}

// outerView is what middleware outside the guard finds in the context of gin after the guard has returned.
type outerView struct {
	status, bodySize     int
	isWritten, isAborted bool
	errorCount           int
	insideValue          any // what the handler has set for the key "inside"
}

func TestOuterMiddlewareSeesTheAnswer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		handler              gin.HandlerFunc
		wantFirst, wantRetry outerView
	}{
		"an answer": {
			func(c *gin.Context) { c.Set("inside", 1); c.String(http.StatusCreated, "charged") },
			outerView{status: 201, bodySize: 7, isWritten: true, insideValue: 1},
			outerView{status: 201, bodySize: 7, isWritten: true, isAborted: true},
		},
		"a status": {
			func(c *gin.Context) { c.Status(http.StatusNoContent) },
			outerView{status: 204, isWritten: true}, outerView{status: 204, isWritten: true, isAborted: true},
		},
		"an abort": {
			func(c *gin.Context) { c.AbortWithStatus(http.StatusPaymentRequired) },
			outerView{status: 402, isWritten: true, isAborted: true}, outerView{status: 402, isWritten: true, isAborted: true},
		},
		"an error with an answer": {
			func(c *gin.Context) { _ = c.Error(errors.New("no log")); c.String(http.StatusCreated, "charged") },
			outerView{status: 201, bodySize: 7, isWritten: true, errorCount: 1},
			outerView{status: 201, bodySize: 7, isWritten: true, isAborted: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			views := make(chan outerView, 3)
			r := gin.New()
			r.Use(func(c *gin.Context) {
				request, writer := c.Request, c.Writer
				c.Next()
				assert.Same(t, request, c.Request)
				assert.Same(t, writer, c.Writer)
				views <- outerView{writer.Status(), writer.Size(), writer.Written(), c.IsAborted(), len(c.Errors), c.Keys["inside"]}
			})
			after := 0
			r.POST("/", newSingleUserMiddleware(t), row.handler, func(*gin.Context) { after++ })
			send := adaptertest.Serve(t, r)
			first := send("/", "k", "")
			adaptertest.RequireReplay(t, first, send("/", "k", ""))
			require.Equal(t, row.wantFirst, <-views)
			require.Equal(t, row.wantRetry, <-views)

			reused := send("/", "k", "another body")
			require.Equal(t, outerView{status: 409, bodySize: len(reused.Body), isWritten: true, isAborted: true}, <-views)
			require.LessOrEqual(t, after, 1)
		})
	}
}

// Middleware outside the guard cannot change the status of a replay, with or without a body.
func TestReplayIsTheAnswer(t *testing.T) {
	t.Parallel()
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		c.Status(http.StatusTeapot)
	})
	r.POST("/", newSingleUserMiddleware(t), func(c *gin.Context) { c.Status(http.StatusNoContent) })
	send := adaptertest.Serve(t, r)
	require.Equal(t, http.StatusNoContent, send("/", "k", "").Status)
	require.Equal(t, http.StatusNoContent, send("/", "k", "").Status)
}

func TestWriter(t *testing.T) {
	t.Parallel()
	for name, handler := range map[string]gin.HandlerFunc{
		"Hijack refuses": func(c *gin.Context) {
			_, _, err := c.Writer.Hijack()
			assert.ErrorIs(t, err, http.ErrNotSupported)
			assert.False(t, c.Writer.Written())
			c.String(http.StatusCreated, "charged")
		},
		"Pusher": func(c *gin.Context) {
			assert.Nil(t, c.Writer.Pusher())
			c.String(http.StatusCreated, "charged")
		},
		"status, size, written": func(c *gin.Context) {
			assert.Equal(t, []any{200, -1, false}, []any{c.Writer.Status(), c.Writer.Size(), c.Writer.Written()})
			c.Status(http.StatusCreated)
			assert.Equal(t, []any{201, -1, false}, []any{c.Writer.Status(), c.Writer.Size(), c.Writer.Written()})
			c.Writer.WriteHeaderNow()
			assert.Equal(t, []any{201, 0, true}, []any{c.Writer.Status(), c.Writer.Size(), c.Writer.Written()})
			c.Status(http.StatusTeapot)
			_, _ = c.Writer.WriteString("char")
			_, _ = c.Writer.Write([]byte("ged"))
			assert.Equal(t, []any{201, 7, true}, []any{c.Writer.Status(), c.Writer.Size(), c.Writer.Written()})
		},
		"a field after the header": func(c *gin.Context) {
			c.Header("X-Early", "1")
			c.Status(http.StatusCreated)
			c.Writer.WriteHeaderNow()
			c.Header("X-Late", "1")
			c.Header("X-Early", "2")
			c.String(http.StatusCreated, "charged")
		},
		"a trailer": func(c *gin.Context) {
			c.Header("Trailer", "X-Sum")
			c.Status(http.StatusCreated)
			c.Writer.WriteHeaderNow()
			c.Header("X-Sum", "1")
			c.String(http.StatusCreated, "charged")
		},
		"deadlines": func(c *gin.Context) {
			control := http.NewResponseController(c.Writer)
			assert.NoError(t, control.SetReadDeadline(time.Now().Add(time.Minute)))
			assert.NoError(t, control.SetWriteDeadline(time.Now().Add(time.Minute)))
			assert.NoError(t, control.EnableFullDuplex())
			_, _, err := control.Hijack()
			assert.ErrorIs(t, err, http.ErrNotSupported)
			c.String(http.StatusCreated, "charged")
		},
		"an error after Flush": func(c *gin.Context) {
			c.Status(http.StatusCreated)
			c.Writer.Flush()
			_ = c.Error(errors.New("no log"))
			_, _ = c.Writer.WriteString("charged")
		},
		"a copy": func(c *gin.Context) {
			done := make(chan struct{})
			go func(c *gin.Context) {
				defer close(done)
				_, guarded := idempotency.FromContext(c.Request.Context())
				assert.True(t, guarded)
			}(c.Copy())
			<-done
			c.String(http.StatusCreated, "charged")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gin.New()
			r.POST("/", newSingleUserMiddleware(t), handler)
			send := adaptertest.Serve(t, r)
			first := send("/", "k", "")
			require.Equal(t, http.StatusCreated, first.Status)
			require.Equal(t, "charged", first.Body)
			require.NotContains(t, first.Header, "X-Late")
			require.NotEqual(t, "2", first.Header.Get("X-Early"))
			require.Equal(t, name == "a trailer", first.Trailer.Get("X-Sum") == "1")
			adaptertest.RequireReplay(t, first, send("/", "k", ""))
		})
	}
}

// An error without a body is not stored, so that middleware outside the guard can answer the error. Without such
// middleware gin answers, with the header as the handler has written the header.
func TestErrorIsLeftToOuterMiddleware(t *testing.T) {
	t.Parallel()
	r := gin.New()
	h := func(c *gin.Context) {
		c.Header("X-Early", "1")
		_ = c.AbortWithError(http.StatusPaymentRequired, errors.New("declined"))
		c.Header("X-Late", "1")
	}
	r.POST("/bare", h)
	r.POST("/guarded", newSingleUserMiddleware(t), h)
	send := adaptertest.Serve(t, r)
	want := send("/bare", "k", "")
	require.Equal(t, http.StatusPaymentRequired, want.Status)
	require.Equal(t, "1", want.Header.Get("X-Early"))
	require.NotContains(t, want.Header, "X-Late")
	require.Equal(t, want, send("/guarded", "k", ""))
	require.Equal(t, want, send("/guarded", "k", ""))
}

// HandleContext resets the context of gin, which then lacks the recording writer. The answer is not stored.
func TestHandleContext(t *testing.T) {
	t.Parallel()
	r := gin.New()
	runs := 0
	r.POST("/old", newSingleUserMiddleware(t), func(c *gin.Context) {
		c.Request.URL.Path = "/new"
		r.HandleContext(c)
	})
	r.POST("/new", func(c *gin.Context) { runs++; c.String(http.StatusCreated, "charged") })
	send := adaptertest.Serve(t, r)
	for range 2 {
		got := send("/old", "k", "")
		require.Equal(t, http.StatusCreated, got.Status)
		require.Equal(t, "charged", got.Body)
		require.False(t, got.Replayed)
	}
	require.Equal(t, 2, runs)
}

// Without a route, gin answers as without the guard.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	for name, noRoute := range map[string]gin.HandlerFunc{
		"no handler":      func(*gin.Context) {},
		"the same status": func(c *gin.Context) { c.Status(http.StatusNotFound) },
		"another status":  func(c *gin.Context) { c.Status(http.StatusGone) },
		"an answer":       func(c *gin.Context) { c.JSON(http.StatusNotFound, gin.H{"error": "no route"}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bare, guarded := gin.New(), gin.New()
			guarded.Use(newSingleUserMiddleware(t))
			for _, r := range []*gin.Engine{bare, guarded} {
				r.HandleMethodNotAllowed = true
				r.GET("/get", func(*gin.Context) {})
				r.POST("/", func(*gin.Context) {})
				r.NoRoute(noRoute)
			}
			sendBare, send := adaptertest.Serve(t, bare), adaptertest.Serve(t, guarded)
			for path, key := range map[string]string{"/none": "k", "/get": "l"} {
				want := sendBare(path, key, "")
				require.Equal(t, want, send(path, key, ""))
				retry := send(path, key, "")
				retry.Replayed = false
				require.Equal(t, want, retry)
			}
		})
	}
}

// The server removes the files of a multipart form, because the guard leaves the form in the request of the server.
func TestFormIsLeftToTheServer(t *testing.T) {
	t.Parallel()
	r := gin.New()
	r.POST("/", newSingleUserMiddleware(t), func(c *gin.Context) {
		file, err := c.FormFile("f")
		assert.NoError(t, err)
		c.String(http.StatusCreated, file.Filename)
	})
	adaptertest.CheckForm(t, r)
}

// The guard may be on all routes, on a group, on a route, and on several of these.
func TestMounting(t *testing.T) {
	t.Parallel()
	for name, mount := range map[string]func(r *gin.Engine, m, h gin.HandlerFunc){
		"all routes": func(r *gin.Engine, m, h gin.HandlerFunc) { r.Use(m); r.POST("/v1/p", h) },
		"a group":    func(r *gin.Engine, m, h gin.HandlerFunc) { r.Group("/v1", m).POST("/p", h) },
		"a route":    func(r *gin.Engine, m, h gin.HandlerFunc) { r.POST("/v1/p", m, h) },
		"twice":      func(r *gin.Engine, m, h gin.HandlerFunc) { r.Group("/v1", m).POST("/p", m, h) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			adaptertest.CheckMounting(t, func(guard adaptertest.Guard, run func()) http.Handler {
				r := gin.New()
				mount(r, ginidempotency.Middleware(guard), func(c *gin.Context) { run(); c.String(http.StatusCreated, "charged") })
				return r
			})
		})
	}
}

// Without a key, the handler receives the request and the writer of gin.
func TestWithoutAKeyNothingChanges(t *testing.T) {
	t.Parallel()
	r := gin.New()
	var request *http.Request
	var writer gin.ResponseWriter
	r.Use(func(c *gin.Context) { request, writer = c.Request, c.Writer })
	r.POST("/", newSingleUserMiddleware(t), func(c *gin.Context) {
		assert.Same(t, request, c.Request)
		assert.Same(t, writer, c.Writer)
		c.Status(http.StatusAccepted)
	})
	require.Equal(t, http.StatusAccepted, adaptertest.Serve(t, r)("/", "", "").Status)
}

// After the loss of the claim, the refusal is the only answer. Middleware that answers errors adds nothing.
func TestClaimLost(t *testing.T) {
	t.Parallel()
	adaptertest.CheckClaimLost(t, func(guard adaptertest.Guard) http.Handler {
		r := gin.New()
		r.Use(func(c *gin.Context) {
			c.Next()
			assert.Equal(t, http.StatusConflict, c.Writer.Status())
			c.JSON(http.StatusTeapot, gin.H{"error": c.Errors.String()})
			_, _ = c.Writer.WriteString("more")
		})
		r.POST("/", ginidempotency.Middleware(guard), func(c *gin.Context) {
			ctx := c.Request.Context()
			<-ctx.Done()
			assert.ErrorIs(t, context.Cause(ctx), idempotency.ErrClaimLost)
			_ = c.Error(ctx.Err())
		})
		return r
	})
}
