package compat_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gorilla/mux"
	echov4 "github.com/labstack/echo/v4"
	"github.com/labstack/echo/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
	"github.com/idempotency-go/idempotency/adapters/echoidempotency"
	"github.com/idempotency-go/idempotency/adapters/fiberidempotency"
	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
	"github.com/idempotency-go/idempotency/step"
)

// A handler of each framework charges in a step. The first attempt fails after the step. The retry does not charge
// again, and a third request gets the answer.
func TestStepsInFrameworks(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(*testing.T, stepped) http.Handler{
		"net/http": stepsInNetHTTP, "chi": stepsInChi, "gorilla": stepsInGorilla, "gin": stepsInGin, "echo": stepsInEcho,
		"echo 4": stepsInEcho4, "huma": stepsInHuma, "fiber": stepsInFiber,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			charges, attempts := 0, 0
			service := serve(t, func(ctx context.Context) (string, error) {
				attempts++
				charge, err := step.Do(ctx, "charge", func(context.Context) (string, error) {
					charges++
					return fmt.Sprint("charge ", charges), nil
				})
				if attempts == 1 {
					err = errors.Join(err, errors.New("the warehouse is down"))
				}
				return charge, err
			})
			for _, want := range []int{http.StatusServiceUnavailable, http.StatusCreated, http.StatusCreated} {
				r, w := httptest.NewRequest(http.MethodPost, "/payments", nil), httptest.NewRecorder()
				r.Header.Set("Idempotency-Key", "order-1")
				service.ServeHTTP(w, r)
				require.Equal(t, want, w.Code, w.Body)
				if want == http.StatusCreated {
					require.Contains(t, w.Body.String(), "charge 1")
				}
			}
			require.Equal(t, []int{1, 2}, []int{charges, attempts})
		})
	}
}

// stepped is the work of a handler, for any framework.
type stepped func(context.Context) (string, error)

// answer returns the status and the body of the handler's answer.
func (p stepped) answer(ctx context.Context) (status int, body string) {
	charge, err := p(ctx)
	if err != nil {
		return http.StatusServiceUnavailable, err.Error()
	}
	return http.StatusCreated, charge
}

func (p stepped) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, body := p.answer(r.Context())
	w.WriteHeader(status)
	fmt.Fprint(w, body)
}

func guardOfSteps(t *testing.T) *idempotency.Middleware {
	return newMiddleware(t, newStore(), idempotency.Options{})
}

func stepsInNetHTTP(t *testing.T, p stepped) http.Handler { return guardOfSteps(t).Handler(p) }

func stepsInChi(t *testing.T, p stepped) http.Handler {
	r := chi.NewRouter()
	r.With(guardOfSteps(t).Handler).Method(http.MethodPost, "/payments", p)
	return r
}

func stepsInGorilla(t *testing.T, p stepped) http.Handler {
	r := mux.NewRouter()
	r.Use(guardOfSteps(t).Handler)
	r.Handle("/payments", p).Methods(http.MethodPost)
	return r
}

func stepsInGin(t *testing.T, p stepped) http.Handler {
	r := gin.New()
	r.POST("/payments", ginidempotency.Middleware(guardOfSteps(t)), func(c *gin.Context) {
		status, body := p.answer(c.Request.Context())
		c.String(status, body)
	})
	return r
}

func stepsInEcho(t *testing.T, p stepped) http.Handler {
	e := echo.New()
	e.POST("/payments", func(c *echo.Context) error {
		status, body := p.answer(c.Request().Context())
		return c.String(status, body)
	}, echoidempotency.Middleware(guardOfSteps(t)))
	return e
}

func stepsInEcho4(t *testing.T, p stepped) http.Handler {
	e := echov4.New()
	e.POST("/payments", func(c echov4.Context) error {
		status, body := p.answer(c.Request().Context())
		return c.String(status, body)
	}, echo4idempotency.Middleware(guardOfSteps(t)))
	return e
}

func stepsInHuma(t *testing.T, p stepped) http.Handler {
	type charged struct{ Body string }
	r := chi.NewRouter()
	r.Use(guardOfSteps(t).Handler)
	operation := huma.Operation{Method: http.MethodPost, Path: "/payments", DefaultStatus: http.StatusCreated}
	huma.Register(humachi.New(r, huma.DefaultConfig("payments", "1")), operation,
		func(ctx context.Context, _ *struct{}) (*charged, error) {
			charge, err := p(ctx)
			if err != nil {
				return nil, huma.Error503ServiceUnavailable("down", err)
			}
			return &charged{charge}, nil
		})
	return r
}

func stepsInFiber(t *testing.T, p stepped) http.Handler {
	app := fiber.New(fiber.Config{DisablePreParseMultipartForm: true})
	once, err := fiberidempotency.Middleware(app, guardOfSteps(t))
	require.NoError(t, err)
	app.Post("/payments", once, func(c fiber.Ctx) error {
		status, body := p.answer(c.Context())
		return c.Status(status).SendString(body)
	})
	return adaptor.FiberApp(app)
}
