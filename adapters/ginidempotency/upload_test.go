package ginidempotency_test

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
	"github.com/idempotency-go/idempotency/upload"
)

// uploads starts a service that takes scans, and returns a function that sends one to it, with key unless it is empty.
// Middleware around the guard answers the errors that handlers attach, unless there is an answer.
func uploads(t *testing.T, handler gin.HandlerFunc) func(key, digestOf, body string) answer {
	t.Helper()
	idem, err := upload.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{MaxBody: 1024, Abandoned: idempotency.Refuse, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	e := gin.New()
	e.POST("/scans", func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 && c.Writer.Size() <= 0 {
			c.String(http.StatusTeapot, c.Errors.Last().Error())
		}
	}, ginidempotency.Middleware(idem), handler)
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return func(key, digestOf, body string) answer {
		r, err := http.NewRequest(http.MethodPost, s.URL+"/scans", strings.NewReader(body))
		require.NoError(t, err)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		sum := sha256.Sum256([]byte(digestOf))
		r.Header.Set("Content-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":")
		resp, err := s.Client().Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return answer{status: resp.StatusCode, body: string(b), replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	}
}

// The adapter verifies bodies if it has the middleware of package upload: no answer to a wrong body is sent or stored.
func TestUpload(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("a page of the scan\n", 1<<12) // more than MaxBody
	read := func(c *gin.Context) (int64, error) { return io.Copy(io.Discard, c.Request.Body) }
	for name, handler := range map[string]gin.HandlerFunc{
		"attaches the error": func(c *gin.Context) {
			n, err := read(c)
			if err != nil {
				_ = c.Error(err)
				return
			}
			c.String(http.StatusCreated, fmt.Sprint(n))
		},
		"aborts with the error": func(c *gin.Context) {
			n, err := read(c)
			if err != nil {
				_ = c.AbortWithError(http.StatusInternalServerError, err)
				return
			}
			c.String(http.StatusCreated, fmt.Sprint(n))
		},
		"ignores the error": func(c *gin.Context) {
			n, _ := read(c)
			c.String(http.StatusCreated, fmt.Sprint(n))
		},
		"answers the error, and attaches it": func(c *gin.Context) {
			if _, err := read(c); err != nil {
				_ = c.Error(err)
				c.String(http.StatusUnprocessableEntity, "the scan is not whole")
				return
			}
			c.String(http.StatusCreated, "archived")
		},
		"reads nothing": func(c *gin.Context) { c.Status(http.StatusNoContent) },
		"is silent":     func(*gin.Context) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			send := uploads(t, func(c *gin.Context) {
				runs.Add(1)
				handler(c)
			})
			for range 2 {
				got := send("1", large, large[1:])
				require.Equal(t, http.StatusBadRequest, got.status, got)
				require.False(t, got.replayed)
				require.Regexp(t, `^\{[^{]*#body-invalid[^{]*\}\s*$`, got.body, "one answer, which is the refusal")
			}
			first := send("1", large, large)
			require.Less(t, first.status, 300, first)
			require.False(t, first.replayed)
			require.EqualValues(t, 3, runs.Load())
			requireReplay(t, first, send("1", large, "")) // no byte of the body need be sent again
			require.EqualValues(t, 3, runs.Load())
		})
	}
}

// A request without a key passes as it was sent, whatever its digest says. Outer middleware still answers for the handler.
func TestUploadWithoutKey(t *testing.T) {
	t.Parallel()
	send := uploads(t, func(c *gin.Context) {
		body, err := io.ReadAll(c.Request.Body)
		_ = c.Error(errors.Join(err, fmt.Errorf("read %q of %d", body, c.Request.ContentLength)))
	})
	require.Equal(t, answer{status: http.StatusTeapot, body: `read "a scan" of 6`}, send("", "another scan", "a scan"))
}
