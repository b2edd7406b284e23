package benchmark

import (
	"io"

	fiber2 "github.com/gofiber/fiber/v2"
	idempotency2 "github.com/gofiber/fiber/v2/middleware/idempotency"
	session2 "github.com/gofiber/fiber/v2/middleware/session"
	fiber3 "github.com/gofiber/fiber/v3"
	idempotency3 "github.com/gofiber/fiber/v3/middleware/idempotency"
	session3 "github.com/gofiber/fiber/v3/middleware/session"
	fiberredis "github.com/gofiber/storage/redis/v3"
	"github.com/valyala/fasthttp"
)

const (
	fiberLacks = "no fingerprint: a reused key replays the answer to another request; no scope by user or path; " +
		"no lease or token; times include fiber's own routing"
	fiberRedisLacks = fiberLacks + "; duplicates are kept apart within one process only"
)

// The middleware of fiber, in both versions, with the storages that it offers.
var (
	Fiber2 = Subject{Name: "fiber v2, memory", Role: Peer, Store: InMemory, Lacks: fiberLacks,
		Open: func(_ *Backends, app *App) (*Target, error) {
			storage := session2.New().Storage
			return overFiber(fiber2Handler(app, storage), storage), nil
		}}

	Fiber3 = Subject{Name: "fiber v3, memory", Role: Peer, Store: InMemory, Lacks: fiberLacks,
		Open: func(_ *Backends, app *App) (*Target, error) {
			storage := session3.NewStore().Storage
			return overFiber(fiber3Handler(app, storage), storage), nil
		}}

	Fiber2Redis = Subject{Name: "fiber v2, storage/redis", Role: Peer, Store: InRedis, Lacks: fiberRedisLacks,
		Open: func(b *Backends, app *App) (*Target, error) {
			return OverFastHTTP(fiber2Handler(app, fiberredis.NewFromConnection(b.Redis))), nil
		}}

	Fiber3Redis = Subject{Name: "fiber v3, storage/redis", Role: Peer, Store: InRedis, Lacks: fiberRedisLacks,
		Open: func(b *Backends, app *App) (*Target, error) {
			return OverFastHTTP(fiber3Handler(app, fiberredis.NewFromConnection(b.Redis))), nil
		}}
)

// overFiber is the target of a fiber application with its storage in memory. It is the one that the middleware makes if
// it is given none, but taken from the session middleware: the other could not be closed, and would stay for ever.
func overFiber(h fasthttp.RequestHandler, storage io.Closer) *Target {
	target := OverFastHTTP(h)
	target.Close = func() { _ = storage.Close() } // has no error
	return target
}

func fiber2Handler(app *App, storage fiber2.Storage) fasthttp.RequestHandler {
	f := fiber2.New(fiber2.Config{DisableStartupMessage: true})
	f.Use(idempotency2.New(idempotency2.Config{
		KeyHeader: keyHeader, Storage: storage, Next: func(c *fiber2.Ctx) bool { return c.Method() != "POST" },
	}))
	f.All(path, func(c *fiber2.Ctx) error {
		app.enter()
		_ = c.Body()
		setFields(c.Set)
		return c.Status(app.Status).Send(app.Work.answer())
	})
	return f.Handler()
}

func fiber3Handler(app *App, storage fiber3.Storage) fasthttp.RequestHandler {
	f := fiber3.New()
	f.Use(idempotency3.New(idempotency3.Config{
		KeyHeader: keyHeader, Storage: storage, Next: func(c fiber3.Ctx) bool { return c.Method() != "POST" },
	}))
	f.All(path, func(c fiber3.Ctx) error {
		app.enter()
		_ = c.Body()
		setFields(c.Set)
		return c.Status(app.Status).Send(app.Work.answer())
	})
	return f.Handler()
}

// setFields sets the fields that App answers with.
func setFields(set func(name, value string)) {
	set("Content-Type", contentType[0])
	set("Location", location[0])
	set("X-Request-Id", requestID[0])
	set("Cache-Control", cacheControl[0])
}
