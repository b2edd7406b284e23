package compat_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/danielgtaylor/huma/v2/sse"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// humaDoor is guarded as in the examples.
func humaDoor() door {
	d := &door{name: "huma v2"}
	type none = struct{}
	type charge struct {
		Charge string `json:"charge"`
	}
	type output struct {
		Status    int
		Location  string        `header:"Location"`
		SetCookie []http.Cookie `header:"Set-Cookie"`
		Body      charge
	}
	one := func(status int) *output { return &output{Status: status, Body: charge{"1"}} }

	humaWay(d, returned, "return output", replayed, func(context.Context, *stage) (*output, error) {
		out := one(http.StatusCreated)
		out.Location, out.SetCookie = "/charges/1", []http.Cookie{{Name: "a", Value: "1"}, {Name: "b", Value: "2"}}
		return out, nil
	})
	humaWay(d, erring, `return nil, huma.NewError(402, "declined")`, replayed,
		func(context.Context, *stage) (*none, error) {
			return nil, huma.NewError(http.StatusPaymentRequired, "declined", &huma.ErrorDetail{Location: "body.amount"})
		})
	humaWay(d, erring, "return nil, huma.ErrorWithHeaders", replayed, func(context.Context, *stage) (*none, error) {
		return nil, huma.ErrorWithHeaders(huma.Error404NotFound("no card"), http.Header{"Cache-Control": {"no-store"}})
	})
	humaWay(d, erring, "return nil, huma.Error503ServiceUnavailable", runsAgain,
		func(context.Context, *stage) (*none, error) { return nil, huma.Error503ServiceUnavailable("down") })
	humaWay(d, erring, `return nil, errors.New("down")`, runsAgain, func(context.Context, *stage) (*none, error) {
		return nil, errors.New("down")
	})
	humaWay(d, aborting, "panic(http.ErrAbortHandler)", runsAgain, func(context.Context, *stage) (*none, error) {
		panic(http.ErrAbortHandler)
	})
	humaWay(d, panicking, "panic", runsAgain, func(context.Context, *stage) (*none, error) { panic("crash") })
	humaWay(d, asJSON, "Body struct", replayed, func(context.Context, *stage) (*output, error) {
		return one(http.StatusAccepted), nil
	})
	humaWay(d, asString, "Body []byte", replayed, func(context.Context, *stage) (*struct {
		ContentType string `header:"Content-Type"`
		Body        []byte
	}, error) {
		return &struct {
			ContentType string `header:"Content-Type"`
			Body        []byte
		}{"text/html", []byte("charged")}, nil
	})
	humaWay(d, redirecting, "Status 303 and Location", replayed, func(context.Context, *stage) (*struct {
		Status   int
		Location string `header:"Location"`
	}, error) {
		return &struct {
			Status   int
			Location string `header:"Location"`
		}{http.StatusSeeOther, "/done"}, nil
	})
	humaWay(d, streaming, "huma.StreamResponse", replayed, func(context.Context, *stage) (*huma.StreamResponse, error) {
		return &huma.StreamResponse{Body: func(ctx huma.Context) {
			ctx.SetHeader("Content-Type", "text/plain")
			for range 3 {
				_, _ = ctx.BodyWriter().Write([]byte("charged "))
				ctx.BodyWriter().(http.Flusher).Flush()
			}
		}}, nil
	})
	d.ways = append(d.ways, way{streaming, "sse.Register", replayed, func(t testing.TB, s *stage) string {
		return humaServer(t, s, func(api huma.API, op huma.Operation) {
			sse.Register(api, op, map[string]any{"charge": charge{}}, func(_ context.Context, _ *none, send sse.Sender) {
				s.enter()
				_ = send.Data(charge{"1"})
				_ = send.Data(charge{"2"})
			})
		})
	}})
	humaWay(d, statusOnly, "Status 204", replayed, func(context.Context, *stage) (*struct{ Status int }, error) {
		return &struct{ Status int }{http.StatusNoContent}, nil
	})
	humaWay(d, silently, "return nil, nil", replayed, func(context.Context, *stage) (*none, error) { return nil, nil })
	humaWay(d, leaving, "the handler goes on", replayed, func(ctx context.Context, s *stage) (*output, error) {
		return one(http.StatusCreated), s.wait(ctx)
	})
	late := func(ctx context.Context, _ *stage) (*output, error) { return one(http.StatusCreated), tooLong(ctx) }
	humaWay(d, timingOut, "the context of the request ends", runsAgain, late, middleware.Timeout(shortly))
	humaWay(d, errorHandler, "an error that is a huma.StatusError", replayed,
		func(context.Context, *stage) (*none, error) { return nil, &humaError{"declined"} })
	humaWay(d, recovering, "chi's middleware.Recoverer", runsAgain, func(context.Context, *stage) (*none, error) {
		panic("crash")
	}, quietly, middleware.Recoverer)
	humaWay(d, compressOut, "chi's middleware.Compress", replayed, func(context.Context, *stage) (*output, error) {
		out := one(http.StatusCreated)
		out.Body.Charge = strings.Repeat("1", 1000)
		return out, nil
	}, middleware.Compress(5))
	return *d
}

// humaError is an error with its own status and form.
type humaError struct {
	Reason string `json:"reason"`
}

func (e *humaError) Error() string { return e.Reason }
func (*humaError) GetStatus() int  { return http.StatusPaymentRequired }

// humaWay adds a way: an operation behind the guard, with layers around the guard.
func humaWay[O any](
	d *door, k kind, name string, retry fate, h func(context.Context, *stage) (*O, error),
	layers ...func(http.Handler) http.Handler,
) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		return humaServer(t, s, func(api huma.API, op huma.Operation) {
			huma.Register(api, op, func(ctx context.Context, _ *struct {
				Body struct{ Amount int }
			}) (*O, error) {
				s.enter()
				return h(ctx, s)
			})
		}, layers...)
	}})
}

// humaServer starts an API with one operation, and returns its URL.
func humaServer(
	t testing.TB, s *stage, register func(huma.API, huma.Operation), layers ...func(http.Handler) http.Handler,
) string {
	t.Helper()
	top := chi.NewRouter()
	top.Use(layers...)
	r := chi.Router(top)
	if s.guarded {
		r = top.With(s.middleware(t).Handler)
	}
	config := huma.DefaultConfig("Payments", "1.0.0")
	config.CreateHooks = nil // the default hooks write the server's address into answers
	register(humachi.New(r, config), huma.Operation{Method: http.MethodPost, Path: "/charges"})
	return s.listen(t, top) + "/charges"
}
