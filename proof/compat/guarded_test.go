package compat_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gorilla/mux"
	echov4 "github.com/labstack/echo/v4"
	"github.com/labstack/echo/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/adapters/echo4idempotency"
	"github.com/idempotency-go/idempotency/adapters/echoidempotency"
	"github.com/idempotency-go/idempotency/adapters/ginidempotency"
	"github.com/idempotency-go/idempotency/idempotencytest"
)

// Each router lists three routes: a guarded route, an unguarded route, and a route whose method needs no guard.
// idempotencytest.Guarded reports the unguarded route.
func TestGuardedFindsTheForgottenRoute(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, *idempotency.Middleware) (http.Handler, []*http.Request){
		"ServeMux": serveMuxRoutes, "chi": chiRoutes, "gorilla": gorillaRoutes, "gin": ginRoutes, "echo": echoRoutes,
		"echo 4": echo4Routes,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			service, requests := start(t, newMiddleware(t, newStore(), idempotency.Options{}))
			require.Len(t, requests, 2)

			test := &reported{TB: t}
			idempotencytest.Guarded(test, service, idempotencytest.GuardedOptions{}, requests...)
			require.Equal(t, []string{"POST /refunds is not guarded: answered 201 Created"}, test.errors)

			forgotten := func(r *http.Request) bool { return r.URL.Path == "/refunds" }
			idempotencytest.Guarded(t, service, idempotencytest.GuardedOptions{}, slices.DeleteFunc(requests, forgotten)...)
		})
	}
}

// reported is a test that records its errors.
type reported struct {
	testing.TB
	errors []string
}

func (r *reported) Errorf(format string, args ...any) {
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// guardedHandler is the handler behind the guard, which must not run.
func guardedHandler(t *testing.T) http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { t.Error("the handler of a guarded route has run") }
}

func forgottenHandler(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

// requestFor returns the request for a route, or nil if the route's method needs no guard.
func requestFor(method, path string) []*http.Request {
	if method != http.MethodPost && method != http.MethodPatch {
		return nil
	}
	return []*http.Request{httptest.NewRequest(method, path, nil)}
}

func serveMuxRoutes(t *testing.T, idem *idempotency.Middleware) (http.Handler, []*http.Request) {
	service := http.NewServeMux()
	service.Handle("POST /payments/{id}/captures", idem.Handler(guardedHandler(t)))
	service.HandleFunc("POST /refunds", forgottenHandler)
	return service, append(requestFor(http.MethodPost, "/payments/7/captures"), requestFor(http.MethodPost, "/refunds")...)
}

func chiRoutes(t *testing.T, idem *idempotency.Middleware) (http.Handler, []*http.Request) {
	service := chi.NewRouter()
	service.With(idem.Handler).Post("/payments/{id}/captures", guardedHandler(t))
	service.Post("/refunds", forgottenHandler)
	service.Get("/refunds", forgottenHandler)

	var requests []*http.Request
	err := chi.Walk(service, func(method, path string, _ http.Handler, _ ...func(http.Handler) http.Handler) error {
		requests = append(requests, requestFor(method, path)...)
		return nil
	})
	require.NoError(t, err)
	return service, requests
}

func gorillaRoutes(t *testing.T, idem *idempotency.Middleware) (http.Handler, []*http.Request) {
	service := mux.NewRouter()
	service.Handle("/payments/{id}/captures", idem.Handler(guardedHandler(t))).Methods(http.MethodPost)
	service.HandleFunc("/refunds", forgottenHandler).Methods(http.MethodGet, http.MethodPost)

	var requests []*http.Request
	err := service.Walk(func(route *mux.Route, _ *mux.Router, _ []*mux.Route) error {
		path, err := route.GetPathTemplate()
		if err != nil {
			return err
		}
		methods, err := route.GetMethods()
		for _, method := range methods {
			requests = append(requests, requestFor(method, path)...)
		}
		return err
	})
	require.NoError(t, err)
	return service, requests
}

func ginRoutes(t *testing.T, idem *idempotency.Middleware) (http.Handler, []*http.Request) {
	service := gin.New()
	service.POST("/payments/:id/captures", ginidempotency.Middleware(idem), gin.WrapF(guardedHandler(t)))
	service.POST("/refunds", gin.WrapF(forgottenHandler))
	service.GET("/refunds", gin.WrapF(forgottenHandler))

	var requests []*http.Request
	for _, route := range service.Routes() {
		requests = append(requests, requestFor(route.Method, route.Path)...)
	}
	return service, requests
}

func echoRoutes(t *testing.T, idem *idempotency.Middleware) (http.Handler, []*http.Request) {
	service := echo.New()
	service.POST("/payments/:id/captures", echo.WrapHandler(guardedHandler(t)), echoidempotency.Middleware(idem))
	service.POST("/refunds", echo.WrapHandler(http.HandlerFunc(forgottenHandler)))
	service.GET("/refunds", echo.WrapHandler(http.HandlerFunc(forgottenHandler)))

	var requests []*http.Request
	for _, route := range service.Router().Routes() {
		requests = append(requests, requestFor(route.Method, route.Path)...)
	}
	return service, requests
}

func echo4Routes(t *testing.T, idem *idempotency.Middleware) (http.Handler, []*http.Request) {
	service := echov4.New()
	service.POST("/payments/:id/captures", echov4.WrapHandler(guardedHandler(t)), echo4idempotency.Middleware(idem))
	service.POST("/refunds", echov4.WrapHandler(http.HandlerFunc(forgottenHandler)))
	service.GET("/refunds", echov4.WrapHandler(http.HandlerFunc(forgottenHandler)))

	var requests []*http.Request
	for _, route := range service.Routes() {
		requests = append(requests, requestFor(route.Method, route.Path)...)
	}
	return service, requests
}
