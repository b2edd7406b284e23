package ginidempotency_test

import (
	"context"
	"errors"
	"io"
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
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	goleak.VerifyTestMain(m)
}

func guard(t *testing.T, user idempotency.UserFunc, opts idempotency.Options) gin.HandlerFunc {
	t.Helper()
	opts.Logger = slog.New(slog.DiscardHandler)
	idem, err := idempotency.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), user, opts)
	require.NoError(t, err)
	return ginidempotency.Middleware(idem)
}

// A client that sends no JSON is no reason for a warning. A handler that attaches an error and leaves the status at 200 is,
// and so is one that fails.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"/bind": "", "/error": "wrote nothing", "/fail": "msg=\"idempotency: released\""} {
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
		require.Equal(t, map[string]int{"/bind": http.StatusBadRequest, "/error": http.StatusOK, "/fail": http.StatusBadGateway}[path], w.Code)
		require.Contains(t, log.String(), want)
		require.Equal(t, want == "", log.Len() == 0, log.String())
	}
}

func single(t *testing.T) gin.HandlerFunc {
	t.Helper()
	return guard(t, idempotency.SingleUser, idempotency.Options{})
}

type answer struct {
	status   int
	header   http.Header
	trailer  http.Header
	body     string
	replayed bool
}

// server starts a service, and returns a function that sends requests to it, with key unless it is empty.
func server(t *testing.T, handler http.Handler) func(path, key, body string) answer {
	t.Helper()
	s := httptest.NewServer(handler)
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
		return answer{resp.StatusCode, resp.Header, resp.Trailer, string(b), replayed}
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
	r := gin.New()
	r.Use(func(c *gin.Context) { c.Set("user", c.GetHeader("Idempotency-Key")) })
	user := func(r *http.Request) (string, error) {
		return strings.TrimPrefix(ginidempotency.Context(r).GetString("user"), "nobody"), nil
	}
	r.POST("/:id", guard(t, user, idempotency.Options{
		ErrorHandler: func(_ http.ResponseWriter, r *http.Request, e *idempotency.Error) {
			ginidempotency.Context(r).JSON(e.Status, gin.H{"error": e.Code})
		},
	}), func(c *gin.Context) {
		assert.Same(t, c, ginidempotency.Context(c.Request))
		_, guarded := idempotency.FromContext(c.Request.Context())
		assert.True(t, guarded)
		c.String(http.StatusCreated, c.Param("id")+c.GetString("user"))
	})
	send := server(t, r)
	first := send("/1", "k", "a")
	require.Equal(t, "1k", first.body)
	requireReplay(t, first, send("/1", "k", "a"))
	refused := send("/1", "nobody", "a")
	require.Equal(t, http.StatusUnauthorized, refused.status)
	require.Equal(t, `{"error":"user-unknown"}`, refused.body)
	require.Equal(t, `{"error":"key-reused"}`, send("/1", "k", "b").body)
	require.Nil(t, ginidempotency.Context(httptest.NewRequest(http.MethodPost, "/", nil)))
}

// seen is what outer middleware sees of a request when the guard has returned.
type seen struct {
	status, size     int
	written, aborted bool
	errors           int
	value            any
}

func TestOuterMiddlewareSeesTheAnswer(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		handler      gin.HandlerFunc
		first, retry seen
	}{
		"an answer": {
			func(c *gin.Context) { c.Set("inside", 1); c.String(http.StatusCreated, "charged") },
			seen{status: 201, size: 7, written: true, value: 1}, seen{status: 201, size: 7, written: true, aborted: true},
		},
		"a status": {
			func(c *gin.Context) { c.Status(http.StatusNoContent) },
			seen{status: 204, written: true}, seen{status: 204, written: true, aborted: true},
		},
		"an abort": {
			func(c *gin.Context) { c.AbortWithStatus(http.StatusPaymentRequired) },
			seen{status: 402, written: true, aborted: true}, seen{status: 402, written: true, aborted: true},
		},
		"an error with an answer": {
			func(c *gin.Context) { _ = c.Error(errors.New("no log")); c.String(http.StatusCreated, "charged") },
			seen{status: 201, size: 7, written: true, errors: 1}, seen{status: 201, size: 7, written: true, aborted: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := make(chan seen, 3)
			r := gin.New()
			r.Use(func(c *gin.Context) {
				request, writer := c.Request, c.Writer
				c.Next()
				assert.Same(t, request, c.Request)
				assert.Same(t, writer, c.Writer)
				log <- seen{writer.Status(), writer.Size(), writer.Written(), c.IsAborted(), len(c.Errors), c.Keys["inside"]}
			})
			after := 0
			r.POST("/", single(t), row.handler, func(*gin.Context) { after++ })
			send := server(t, r)
			first := send("/", "k", "")
			requireReplay(t, first, send("/", "k", ""))
			require.Equal(t, row.first, <-log)
			require.Equal(t, row.retry, <-log)

			reused := send("/", "k", "another body")
			require.Equal(t, seen{status: 409, size: len(reused.body), written: true, aborted: true}, <-log)
			require.LessOrEqual(t, after, 1)
		})
	}
}

// Once a replay has begun, middleware outside cannot change its status, with or without a body.
func TestReplayIsTheAnswer(t *testing.T) {
	t.Parallel()
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		c.Status(http.StatusTeapot)
	})
	r.POST("/", single(t), func(c *gin.Context) { c.Status(http.StatusNoContent) })
	send := server(t, r)
	require.Equal(t, http.StatusNoContent, send("/", "k", "").status)
	require.Equal(t, http.StatusNoContent, send("/", "k", "").status)
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
		"a field that comes too late": func(c *gin.Context) {
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
			r.POST("/", single(t), handler)
			send := server(t, r)
			first := send("/", "k", "")
			require.Equal(t, http.StatusCreated, first.status)
			require.Equal(t, "charged", first.body)
			require.NotContains(t, first.header, "X-Late")
			require.NotEqual(t, "2", first.header.Get("X-Early"))
			require.Equal(t, name == "a trailer", first.trailer.Get("X-Sum") == "1")
			requireReplay(t, first, send("/", "k", ""))
		})
	}
}

// An error without a body is answered by gin itself if nobody else does, with the header as it was written.
func TestErrorIsLeftToOuterMiddleware(t *testing.T) {
	t.Parallel()
	r := gin.New()
	h := func(c *gin.Context) {
		c.Header("X-Early", "1")
		_ = c.AbortWithError(http.StatusPaymentRequired, errors.New("declined"))
		c.Header("X-Late", "1")
	}
	r.POST("/bare", h)
	r.POST("/guarded", single(t), h)
	send := server(t, r)
	want := send("/bare", "k", "")
	require.Equal(t, http.StatusPaymentRequired, want.status)
	require.Equal(t, "1", want.header.Get("X-Early"))
	require.NotContains(t, want.header, "X-Late")
	require.Equal(t, want, send("/guarded", "k", ""))
	require.Equal(t, want, send("/guarded", "k", ""))
}

// A context that another path is looked up for has lost the recorded writer. Its answer is not stored.
func TestHandleContext(t *testing.T) {
	t.Parallel()
	r := gin.New()
	runs := 0
	r.POST("/old", single(t), func(c *gin.Context) {
		c.Request.URL.Path = "/new"
		r.HandleContext(c)
	})
	r.POST("/new", func(c *gin.Context) { runs++; c.String(http.StatusCreated, "charged") })
	send := server(t, r)
	for range 2 {
		got := send("/old", "k", "")
		require.Equal(t, http.StatusCreated, got.status)
		require.Equal(t, "charged", got.body)
		require.False(t, got.replayed)
	}
	require.Equal(t, 2, runs)
}

// What gin answers by itself if there is no route is left to it.
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
			guarded.Use(single(t))
			for _, r := range []*gin.Engine{bare, guarded} {
				r.HandleMethodNotAllowed = true
				r.GET("/get", func(*gin.Context) {})
				r.POST("/", func(*gin.Context) {})
				r.NoRoute(noRoute)
			}
			sendBare, send := server(t, bare), server(t, guarded)
			for path, key := range map[string]string{"/none": "k", "/get": "l"} {
				want := sendBare(path, key, "")
				require.Equal(t, want, send(path, key, ""))
				retry := send(path, key, "")
				retry.replayed = false
				require.Equal(t, want, retry)
			}
		})
	}
}

// The server removes the files of a form that it finds in its own request.
func TestFormIsLeftToTheServer(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "k"} {
		e := gin.New()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(
			"--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\nfile\r\n--b--\r\n"))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		e.POST("/", single(t), func(c *gin.Context) {
			file, err := c.FormFile("f")
			assert.NoError(t, err)
			c.String(http.StatusCreated, file.Filename)
		})
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		require.Equal(t, http.StatusCreated, w.Code)
		require.NotNil(t, r.MultipartForm)
	}
}

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
			runs := 0
			r := gin.New()
			mount(r, single(t), func(c *gin.Context) { runs++; c.String(http.StatusCreated, "charged") })
			send := server(t, r)
			first := send("/v1/p", "k", "")
			require.Equal(t, "charged", first.body)
			requireReplay(t, first, send("/v1/p", "k", ""))
			require.Equal(t, 1, runs)
		})
	}
}

func TestWithoutAKeyNothingChanges(t *testing.T) {
	t.Parallel()
	r := gin.New()
	var request *http.Request
	var writer gin.ResponseWriter
	r.Use(func(c *gin.Context) { request, writer = c.Request, c.Writer })
	r.POST("/", single(t), func(c *gin.Context) {
		assert.Same(t, request, c.Request)
		assert.Same(t, writer, c.Writer)
		c.Status(http.StatusAccepted)
	})
	require.Equal(t, http.StatusAccepted, server(t, r)("/", "", "").status)
}

// A claim that is lost is refused, and the refusal is the only answer: middleware that answers errors adds nothing.
func TestClaimLost(t *testing.T) {
	t.Parallel()
	store := lossyStore{idempotency.NewMemoryStore(idempotency.MemoryOptions{})}
	idem, err := idempotency.New(store, idempotency.SingleUser, idempotency.Options{
		Lease: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Next()
		assert.Equal(t, http.StatusConflict, c.Writer.Status())
		c.JSON(http.StatusTeapot, gin.H{"error": c.Errors.String()})
		_, _ = c.Writer.WriteString("more")
	})
	r.POST("/", ginidempotency.Middleware(idem), func(c *gin.Context) {
		ctx := c.Request.Context()
		<-ctx.Done()
		assert.ErrorIs(t, context.Cause(ctx), idempotency.ErrClaimLost)
		_ = c.Error(ctx.Err())
	})
	got := server(t, r)("/", "k", "")
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
