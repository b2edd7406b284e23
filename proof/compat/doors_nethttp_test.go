package compat_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/gorilla/handlers"
	"github.com/gorilla/mux"
)

func serveMuxDoor() door {
	d := netHTTPDoor("net/http", func(h http.Handler, layers ...layer) http.Handler {
		m := http.NewServeMux()
		m.Handle("POST /charges/{id}", around(layers...)(nil, h))
		return m
	})
	d.layer(timingOut, "http.TimeoutHandler", runsAgain, d.tooLate, func(next http.Handler) http.Handler {
		return http.TimeoutHandler(next, shortly, "late")
	})
	return d.door
}

func chiDoor() door {
	d := netHTTPDoor("chi", func(h http.Handler, layers ...layer) http.Handler {
		r := chi.NewRouter()
		r.Use(layers...)
		r.Method(http.MethodPost, "/charges/{id}", h)
		return r
	})
	d.layer(timingOut, "middleware.Timeout", runsAgain, d.tooLate, middleware.Timeout(shortly))
	d.layer(recovering, "middleware.Recoverer", runsAgain, d.crash, quietly, middleware.Recoverer)
	d.compression("middleware.Compress", middleware.Compress(5))
	return d.door
}

func gorillaDoor() door {
	d := netHTTPDoor("gorilla/mux", func(h http.Handler, layers ...layer) http.Handler {
		r := mux.NewRouter()
		for _, layer := range layers {
			r.Use(layer)
		}
		r.Handle("/charges/{id}", h).Methods(http.MethodPost)
		return r
	})
	recovery := handlers.RecoveryHandler(handlers.RecoveryLogger(noPrint{}))
	d.layer(recovering, "handlers.RecoveryHandler", runsAgain, d.crash, recovery)
	d.compression("handlers.CompressHandler", handlers.CompressHandler)
	return d.door
}

type layer = func(http.Handler) http.Handler

// netHTTP is a door with net/http handlers.
type netHTTP struct {
	door
	route func(h http.Handler, layers ...layer) http.Handler // mounts h on /charges/{id}
}

// netHTTPDoor returns a door with the ways of net/http.
func netHTTPDoor(name string, route func(http.Handler, ...layer) http.Handler) *netHTTP {
	d := &netHTTP{door{name: name}, route}
	d.way(erring, `http.Error(w, "declined", 402)`, replayed, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "declined", http.StatusPaymentRequired)
	})
	d.way(erring, `http.Error(w, "down", 503)`, runsAgain, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "down", http.StatusServiceUnavailable)
	})
	d.way(aborting, "panic(http.ErrAbortHandler)", runsAgain, abort)
	d.way(panicking, "panic", runsAgain, crash)
	d.way(asJSON, "json.NewEncoder(w).Encode(charge)", replayed, d.json)
	d.way(asString, `fmt.Fprint(w, "charged")`, replayed, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "charged ", r.PathValue("id"))
	})
	d.way(asFile, "http.ServeFile", replayed, func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, "go.mod")
	})
	d.way(redirecting, `http.Redirect(w, r, "/done", 303)`, replayed, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/done", http.StatusSeeOther)
	})
	d.way(streaming, "Flush", replayed, func(w http.ResponseWriter, _ *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "charged ")
			_ = http.NewResponseController(w).Flush()
		}
	})
	d.way(streaming, "trailers", replayed, trailing)
	d.way(statusOnly, "w.WriteHeader(204)", replayed, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})
	d.way(silently, "return", replayed, func(http.ResponseWriter, *http.Request) {})
	d.add(leaving, "the handler goes on", replayed, func(t testing.TB, s *stage) http.Handler {
		return s.guard(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.enter()
			if s.wait(r.Context()) == nil {
				created(w, r)
			}
		}))
	})
	return d
}

func (*netHTTP) crash(w http.ResponseWriter, r *http.Request) { crash(w, r) }

func (*netHTTP) json(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]string{"charge": r.PathValue("id")})
}

// tooLate gives up when its context ends.
func (*netHTTP) tooLate(w http.ResponseWriter, r *http.Request) {
	if tooLong(r.Context()) == nil {
		created(w, r)
	}
}

// add adds a way whose guarded handler is made by serve.
func (d *netHTTP) add(
	k kind, name string, retry fate, serve func(testing.TB, *stage) http.Handler,
	outer ...layer,
) {
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		return s.listen(t, d.route(serve(t, s), outer...)) + "/charges/1"
	}})
}

// way adds a way: a handler without layers.
func (d *netHTTP) way(k kind, name string, retry fate, h http.HandlerFunc) {
	d.outside(k, name, retry, h)
}

// layer adds two ways: with layers outside the guard, and with the layers inside.
func (d *netHTTP) layer(k kind, name string, retry fate, h http.HandlerFunc, layers ...layer) {
	d.outside(k, name+" outside", retry, h, layers...)
	d.inside(k, name+" inside", retry, h, layers...)
}

func (d *netHTTP) compression(name string, compress layer) {
	d.outside(compressOut, name, replayed, d.json, compress)
	d.inside(compressIn, name, replayed, d.json, compress)
}

func (d *netHTTP) outside(k kind, name string, retry fate, h http.HandlerFunc, layers ...layer) {
	d.add(k, name, retry, func(t testing.TB, s *stage) http.Handler { return s.guard(t, s.counted(h)) }, layers...)
}

func (d *netHTTP) inside(k kind, name string, retry fate, h http.HandlerFunc, layers ...layer) {
	d.add(k, name, retry, func(t testing.TB, s *stage) http.Handler {
		return s.guard(t, around(layers...)(t, s.counted(h)))
	})
}

// counted counts the runs of a net/http handler.
func (s *stage) counted(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.enter()
		h(w, r)
	})
}
