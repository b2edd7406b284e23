package compat_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
	"github.com/idempotency-go/idempotency/adapters/echoidempotency"
	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
	"github.com/idempotency-go/idempotency/fingerprint/keyfrom"
)

// namedOrder is the body of a request.
type namedOrder struct{ Key, Name string }

// orderServices make services of frameworks that answer with the name of an order, or with 418 if the name is missing.
var orderServices = map[string]func(guard *keyfrom.Middleware, countRun func()) http.Handler{
	"gin": func(guard *keyfrom.Middleware, countRun func()) http.Handler {
		service := gin.New()
		service.Use(func(c *gin.Context) {
			c.Next()
			if len(c.Errors) > 0 && c.Writer.Size() <= 0 {
				c.String(http.StatusTeapot, c.Errors.Last().Error())
			}
		}, ginidempotency.Middleware(guard))
		service.POST("/orders", func(c *gin.Context) {
			countRun()
			var order namedOrder
			if err := c.ShouldBindJSON(&order); err != nil || order.Name == "" {
				_ = c.Error(errors.New("no name"))
				return
			}
			c.String(http.StatusCreated, order.Name)
		})
		return service
	},
	"echo": func(guard *keyfrom.Middleware, countRun func()) http.Handler {
		service := echo5.New()
		service.POST("/orders", func(c *echo5.Context) error {
			countRun()
			var order namedOrder
			if err := c.Bind(&order); err != nil || order.Name == "" {
				return echo5.NewHTTPError(http.StatusTeapot, "no name")
			}
			return c.String(http.StatusCreated, order.Name)
		}, echoidempotency.Middleware(guard))
		return service
	},
	"echo v4": func(guard *keyfrom.Middleware, countRun func()) http.Handler {
		service := echo.New()
		service.POST("/orders", func(c echo.Context) error {
			countRun()
			var order namedOrder
			if err := c.Bind(&order); err != nil || order.Name == "" {
				return echo.NewHTTPError(http.StatusTeapot, "no name")
			}
			return c.String(http.StatusCreated, order.Name)
		}, echo4idempotency.Middleware(guard))
		return service
	},
}

// In frameworks, too, the guard finds the key in the body. The handler can read the body and fail, with or without a key.
func TestFrameworksWithKeysInBodies(t *testing.T) {
	t.Parallel()
	for name, newService := range orderServices {
		store := idempotency.NewMemoryStore(idempotency.MemoryOptions{})
		guard, err := keyfrom.New(store, idempotency.SingleUser, idempotency.Options{}, keyfrom.JSON("/key"))
		require.NoError(t, err)
		runs := 0
		service := newService(guard, func() { runs++ })
		for _, row := range []struct {
			body, answer string
			status, runs int
		}{
			{`{"key":"k","name":"a"}`, "a", http.StatusCreated, 1},
			{`{"name":"a","key":"k"}`, "a", http.StatusCreated, 1},
			{`{"name":"b"}`, "b", http.StatusCreated, 2},
			{`{"name":"b"}`, "b", http.StatusCreated, 3},
			{`{}`, "no name", http.StatusTeapot, 4},
			{`{"key":"l"}`, "no name", http.StatusTeapot, 5},
		} {
			r, w := httptest.NewRequest("POST", "/orders", strings.NewReader(row.body)), httptest.NewRecorder()
			r.Header.Set("Content-Type", "application/json")
			service.ServeHTTP(w, r)
			require.Equal(t, row.status, w.Code, "%s: %s", name, row.body)
			require.Equal(t, 1, strings.Count(w.Body.String(), row.answer), "%s: %s", name, row.body)
			require.Equal(t, row.runs, runs, "%s: %s", name, row.body)
		}
	}
}
