package ginidempotency_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
	"github.com/idempotency-go/idempotency/adapters/internal/adaptertest"
)

// takeScans returns a service for uploads of scans. Middleware outside the guard answers the errors that handlers attach,
// unless the handler has written a body.
func takeScans(guard adaptertest.Guard, handlers ...gin.HandlerFunc) http.Handler {
	e := gin.New()
	e.Use(func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 && c.Writer.Size() <= 0 {
			c.String(http.StatusTeapot, c.Errors.Last().Error())
		}
	}, ginidempotency.Middleware(guard))
	e.POST("/scans", handlers...)
	return e
}

func TestUpload(t *testing.T) {
	t.Parallel()
	read := func(c *gin.Context) (int64, error) { return io.Copy(io.Discard, c.Request.Body) }
	adaptertest.CheckUpload(t, map[string]gin.HandlerFunc{
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
		"does nothing":  func(*gin.Context) {},
	}, func(guard adaptertest.Guard, handler gin.HandlerFunc, run func()) http.Handler {
		return takeScans(guard, func(*gin.Context) { run() }, handler)
	})
}

// Without a key, the handler receives the body as the client has sent the body.
func TestUploadWithoutKey(t *testing.T) {
	t.Parallel()
	adaptertest.CheckUploadWithoutKey(t, func(guard adaptertest.Guard) http.Handler {
		return takeScans(guard, func(c *gin.Context) {
			body, err := io.ReadAll(c.Request.Body)
			_ = c.Error(errors.Join(err, fmt.Errorf("read %q of %d", body, c.Request.ContentLength)))
		})
	})
}
