package benchmark

import (
	fiber2 "github.com/gofiber/fiber/v2"
	idempotency2 "github.com/gofiber/fiber/v2/middleware/idempotency"
	fiber3 "github.com/gofiber/fiber/v3"
	idempotency3 "github.com/gofiber/fiber/v3/middleware/idempotency"
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
		Open: func(_ *Backends, app *App) (*Target, error) { return OverFastHTTP(fiber2Handler(app, nil)), nil }}

	Fiber3 = Subject{Name: "fiber v3, memory", Role: Peer, Store: InMemory, Lacks: fiberLacks,
		Open: func(_ *Backends, app *App) (*Target, error) { return OverFastHTTP(fiber3Handler(app, nil)), nil }}

	Fiber2Redis = Subject{Name: "fiber v2, storage/redis", Role: Peer, Store: InRedis, Lacks: fiberRedisLacks,
		Open: func(b *Backends, app *App) (*Target, error) {
			return OverFastHTTP(fiber2Handler(app, fiberredis.NewFromConnection(b.Redis))), nil
		}}

	Fiber3Redis = Subject{Name: "fiber v3, storage/redis", Role: Peer, Store: InRedis, Lacks: fiberRedisLacks,
		Open: func(b *Backends, app *App) (*Target, error) {
			return OverFastHTTP(fiber3Handler(app, fiberredis.NewFromConnection(b.Redis))), nil
		}}
)

func fiber2Handler(app *App, storage *fiberredis.Storage) fasthttp.RequestHandler {
	config := idempotency2.Config{KeyHeader: keyHeader, Next: func(c *fiber2.Ctx) bool { return c.Method() != "POST" }}
	if storage != nil {
		config.Storage = storage
	}
	f := fiber2.New(fiber2.Config{DisableStartupMessage: true})
	f.Use(idempotency2.New(config))
	f.All(path, func(c *fiber2.Ctx) error {
		app.enter()
		_ = c.Body()
		c.Set("Content-Type", contentType[0])
		c.Set("Location", location[0])
		c.Set("X-Request-Id", requestID[0])
		c.Set("Cache-Control", cacheControl[0])
		return c.Status(app.Status).Send(app.Work.answer())
	})
	return f.Handler()
}

func fiber3Handler(app *App, storage *fiberredis.Storage) fasthttp.RequestHandler {
	config := idempotency3.Config{KeyHeader: keyHeader, Next: func(c fiber3.Ctx) bool { return c.Method() != "POST" }}
	if storage != nil {
		config.Storage = storage
	}
	f := fiber3.New()
	f.Use(idempotency3.New(config))
	f.All(path, func(c fiber3.Ctx) error {
		app.enter()
		_ = c.Body()
		c.Set("Content-Type", contentType[0])
		c.Set("Location", location[0])
		c.Set("X-Request-Id", requestID[0])
		c.Set("Cache-Control", cacheControl[0])
		return c.Status(app.Status).Send(app.Work.answer())
	})
	return f.Handler()
}
