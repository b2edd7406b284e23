package compat_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/compress"
	"github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gofiber/fiber/v3/middleware/timeout"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/idempotency-go/idempotency/adapters/fiberidempotency"
)

// fiberName is the name of the only door that cannot run in a bubble, because fasthttp has goroutines that never
// end.
const fiberName = "fiber v3"

// fiberDoor is guarded by fiberidempotency.
func fiberDoor() door {
	d := &fiberWays{door: door{name: fiberName}}
	d.way(erring, `return fiber.NewError(402, "declined")`, replayed, func(fiber.Ctx) error {
		return fiber.NewError(fiber.StatusPaymentRequired, "declined")
	})
	d.way(erring, `return fiber.ErrServiceUnavailable`, runsAgain, func(fiber.Ctx) error {
		return fiber.ErrServiceUnavailable
	})
	d.way(erring, `return errors.New("down")`, runsAgain, func(fiber.Ctx) error { return errors.New("down") })
	d.way(aborting, "c.Drop", runsAgain, func(c fiber.Ctx) error { return c.Drop() })
	d.way(aborting, "c.End", replayed, func(c fiber.Ctx) error {
		if err := c.Status(fiber.StatusCreated).SendString("charged"); err != nil {
			return err
		}
		return c.End()
	})
	d.way(asJSON, "c.JSON", replayed, d.json)
	d.way(asJSON, "c.JSONP", replayed, func(c fiber.Ctx) error { return c.JSONP(fiber.Map{"charge": 1}, "f") })
	d.way(asJSON, "c.Format", replayed, func(c fiber.Ctx) error {
		return c.Format(fiber.ResFmt{MediaType: "json", Handler: d.json})
	})
	d.way(asJSON, "c.AutoFormat", replayed, func(c fiber.Ctx) error { return c.AutoFormat(fiber.Map{"charge": 1}) })
	d.way(asString, "c.SendString", replayed, func(c fiber.Ctx) error { return c.SendString("charged " + c.Params("id")) })
	d.way(asString, "c.Send", replayed, func(c fiber.Ctx) error { return c.Status(fiber.StatusAccepted).Send(c.Body()) })
	d.way(asString, "c.Write, header fields and cookies", replayed, func(c fiber.Ctx) error {
		c.Location("/charges/1")
		c.Append("Link", "</a>", "</b>")
		c.Cookie(&fiber.Cookie{Name: "a", Value: "1"})
		c.Cookie(&fiber.Cookie{Name: "b", Value: "2"})
		c.Vary("Accept")
		_, err := c.Status(fiber.StatusCreated).Type("html").Writef("charged %s", c.Params("id"))
		return err
	})
	d.way(asFile, "c.SendFile", replayed, func(c fiber.Ctx) error { return c.SendFile("go.mod") })
	d.way(asFile, "c.Download", replayed, func(c fiber.Ctx) error { return c.Download("go.mod", "charges.txt") })
	d.way(redirecting, `c.Redirect().To("/done")`, replayed, func(c fiber.Ctx) error { return c.Redirect().To("/done") })
	d.way(redirecting, `c.Redirect().With("status", "charged").To("/done")`, replayed, func(c fiber.Ctx) error {
		return c.Redirect().With("status", "charged").To("/done")
	})
	d.way(streaming, "c.SendStream", replayed, func(c fiber.Ctx) error {
		return c.SendStream(strings.NewReader("charged"))
	})
	d.way(streaming, "c.SendStreamWriter", replayed, func(c fiber.Ctx) error {
		return c.SendStreamWriter(func(w *bufio.Writer) {
			for range 3 {
				fmt.Fprint(w, "charged ")
				_ = w.Flush()
			}
		})
	})
	d.way(statusOnly, "c.SendStatus(204)", replayed, func(c fiber.Ctx) error { return c.SendStatus(204) })
	d.way(statusOnly, "c.SendStatus(404)", replayed, func(c fiber.Ctx) error { return c.SendStatus(404) })
	d.way(statusOnly, "c.Status(202)", replayed, func(c fiber.Ctx) error { c.Status(fiber.StatusAccepted); return nil })
	d.way(silently, "return nil", replayed, func(fiber.Ctx) error { return nil })
	d.add(leaving, "the handler goes on", replayed, fiber.Config{}, func(s *stage, once fiber.Handler) []any {
		return []any{once, func(c fiber.Ctx) error {
			s.enter()
			if err := s.wait(c.Context()); err != nil {
				return err
			}
			return d.json(c)
		}}
	})
	d.layers()
	return d.door
}

// layers adds ways whose layers are configured around handlers.
func (d *fiberWays) layers() {
	late := func(s *stage) fiber.Handler {
		return func(c fiber.Ctx) error { s.enter(); return tooLong(c.Context()) }
	}
	d.add(timingOut, "timeout.New outside", runsAgain, fiber.Config{}, func(s *stage, once fiber.Handler) []any {
		return []any{timeout.New(once, timeout.Config{Timeout: shortly}), late(s)}
	})
	d.add(timingOut, "timeout.New inside", runsAgain, fiber.Config{}, func(s *stage, once fiber.Handler) []any {
		return []any{once, timeout.New(late(s), timeout.Config{Timeout: shortly})}
	})
	// deaf ignores its context, and goes on after the timeout has given up.
	deaf := func(s *stage) fiber.Handler {
		return func(c fiber.Ctx) error {
			s.enter()
			for began := time.Now(); !c.IsAbandoned() && time.Since(began) < long; {
				time.Sleep(time.Millisecond)
			}
			return nil
		}
	}
	d.add(timingOut, "timeout.New outside, ignored", runsAgain, fiber.Config{}, func(s *stage, once fiber.Handler) []any {
		return []any{timeout.New(once, timeout.Config{Timeout: shortly}), deaf(s)}
	})
	d.add(timingOut, "timeout.New inside, ignored", runsAgain, fiber.Config{}, func(s *stage, once fiber.Handler) []any {
		return []any{once, timeout.New(deaf(s), timeout.Config{Timeout: shortly})}
	})
	problems := fiber.Config{ErrorHandler: func(c fiber.Ctx, err error) error {
		return c.Status(fiber.StatusUnprocessableEntity).JSON(fiber.Map{"error": err.Error()}, "application/problem+json")
	}}
	declined := func(fiber.Ctx) error { return errors.New("declined") }
	d.add(errorHandler, "ErrorHandler", replayed, problems, d.after(declined))
	failing := fiber.Config{ErrorHandler: func(_ fiber.Ctx, err error) error { return err }}
	d.add(errorHandler, "ErrorHandler that fails", runsAgain, failing, d.after(declined))

	crash := func(fiber.Ctx) error { panic("crash") }
	d.layer(recovering, recovering, "recover.New", runsAgain, crash, recover.New())
	large := func(c fiber.Ctx) error { return c.SendString(strings.Repeat("charged ", 1000)) }
	d.layer(compressOut, compressIn, "compress.New", replayed, large, compress.New())
}

// fiberWays is a door with fiber handlers.
type fiberWays struct{ door }

func (*fiberWays) json(c fiber.Ctx) error {
	return c.Status(fiber.StatusCreated).JSON(fiber.Map{"charge": c.Params("id")})
}

// add adds a way with the handlers of a route, which include the guard.
func (d *fiberWays) add(
	k kind, name string, retry fate, cfg fiber.Config, handlers func(s *stage, once fiber.Handler) []any,
) {
	cfg.DisablePreParseMultipartForm = true
	d.ways = append(d.ways, way{k, name, retry, func(t testing.TB, s *stage) string {
		app := fiber.New(cfg)
		once := fiber.Handler(func(c fiber.Ctx) error { return c.Next() })
		if s.guarded {
			var err error
			once, err = fiberidempotency.Middleware(app, s.middleware(t))
			require.NoError(t, err)
		}
		all := handlers(s, once)
		app.Post("/charges/:id", all[0], all[1:]...)
		return listenFiber(t, s, app) + "/charges/1"
	}})
}

// way adds a way: a handler without layers.
func (d *fiberWays) way(k kind, name string, retry fate, h fiber.Handler) {
	d.add(k, name, retry, fiber.Config{}, d.after(h))
}

// after puts a handler behind the guard.
func (*fiberWays) after(h fiber.Handler) func(*stage, fiber.Handler) []any {
	return func(s *stage, once fiber.Handler) []any { return []any{once, s.countedFiber(h)} }
}

// layer adds two ways: with a layer outside the guard, and with the layer inside.
func (d *fiberWays) layer(out, in kind, name string, retry fate, h, layer fiber.Handler) {
	d.add(out, name+" outside", retry, fiber.Config{}, func(s *stage, once fiber.Handler) []any {
		return []any{layer, once, s.countedFiber(h)}
	})
	d.add(in, name+" inside", retry, fiber.Config{}, func(s *stage, once fiber.Handler) []any {
		return []any{once, layer, s.countedFiber(h)}
	})
}

// countedFiber counts the runs of a fiber handler.
func (s *stage) countedFiber(h fiber.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		s.enter()
		return h(c)
	}
}

// listenFiber starts a fasthttp server, and returns its URL.
func listenFiber(t testing.TB, s *stage, app *fiber.App) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		s.goOn()
		require.NoError(t, app.Shutdown())
		require.NoError(t, <-ended)
	})
	return "http://" + listener.Addr().String()
}

// leftByFasthttp returns goleak options for the goroutines that fasthttp leaves: the clock, the compressors, and
// the goroutines that clean up after a server and after files when they wake up.
func leftByFasthttp() (options []goleak.Option) {
	for _, function := range []string{
		".updateServerDate.func1", "/stackless.funcWorker", ".(*workerPool).Start.func2",
		".(*inMemoryCacheManager).handleCleanCache",
	} {
		options = append(options, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp"+function))
	}
	return options
}
