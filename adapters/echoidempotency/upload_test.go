package echoidempotency_test

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

	"github.com/labstack/echo/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echoidempotency"
	"github.com/idempotency-go/idempotency/upload"
)

// uploads starts a service that takes scans, and returns a function that sends one to it, with key unless it is empty.
func uploads(t *testing.T, handler echo.HandlerFunc, outer ...echo.MiddlewareFunc) func(key, digestOf, body string) answer {
	t.Helper()
	idem, err := upload.New(idempotency.NewMemoryStore(idempotency.MemoryOptions{}), idempotency.SingleUser,
		idempotency.Options{MaxBody: 1024, Abandoned: idempotency.Refuse, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	e := newEcho()
	e.POST("/scans", handler, append(outer, echoidempotency.Middleware(idem))...)
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
	for name, handler := range map[string]echo.HandlerFunc{
		"returns the error": func(c *echo.Context) error {
			n, err := io.Copy(io.Discard, c.Request().Body)
			if err != nil {
				return err
			}
			return c.String(http.StatusCreated, fmt.Sprint(n))
		},
		"ignores the error": func(c *echo.Context) error {
			n, _ := io.Copy(io.Discard, c.Request().Body)
			return c.String(http.StatusCreated, fmt.Sprint(n))
		},
		"answers the error, and returns it": func(c *echo.Context) error {
			if _, err := io.Copy(io.Discard, c.Request().Body); err != nil {
				return errors.Join(c.String(http.StatusUnprocessableEntity, "the scan is not whole"), err)
			}
			return c.String(http.StatusCreated, "archived")
		},
		"reads nothing": func(c *echo.Context) error { return c.NoContent(http.StatusNoContent) },
		"is silent":     func(*echo.Context) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var runs atomic.Int64
			send := uploads(t, func(c *echo.Context) error {
				runs.Add(1)
				return handler(c)
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
	send := uploads(t, func(c *echo.Context) error {
		body, err := io.ReadAll(c.Request().Body)
		return errors.Join(err, fmt.Errorf("read %q of %d", body, c.Request().ContentLength))
	}, func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			return c.String(http.StatusTeapot, next(c).Error())
		}
	})
	require.Equal(t, answer{status: http.StatusTeapot, body: `read "a scan" of 6`}, send("", "another scan", "a scan"))
}
