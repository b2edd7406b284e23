package benchmark

import (
	"context"
	"fmt"
	"strings"
	"time"

	fiber "github.com/gofiber/fiber/v3"
	fiberidempotency "github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/session"
	fiberredis "github.com/gofiber/storage/redis/v3"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/cache"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
)

const (
	lease = time.Minute
	ttl   = 24 * time.Hour
)

// The subjects without a store on a server.
var (
	BareHandler = &Subject{Name: "bare handler", Store: InMemory, Lacks: "everything",
		Open: func(_ *Backends, app *App) (*Target, error) { return NetHTTP(app), nil }}

	MemoryLeast = &Subject{Name: "the least, memory", Store: InMemory, Lacks: leastLacks + "; nothing expires",
		Open: func(_ *Backends, app *App) (*Target, error) { return NetHTTP(&least{newLeastMemory(), app}), nil }}

	Memory = &Subject{Name: "idempotency, memory", Store: InMemory, Mark: ReplayMark,
		Open: func(_ *Backends, app *App) (*Target, error) {
			return overLibrary(idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40}), app)
		}}

	// Cached replays from a cache in front of Redis.
	Cached = &Subject{Name: "idempotency, cache on Redis", Store: InMemory, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overLibrary(cache.New(redisStore(b), cache.Options{}), app)
		}}

	// The storage is the one that the middleware makes if it is given none. That one could not be closed.
	FiberMemory = &Subject{Name: "fiber v3, memory", Store: InMemory, Lacks: fiberLacks,
		Open: func(_ *Backends, app *App) (*Target, error) {
			storage := session.NewStore().Storage
			target := overFiber(app, storage)
			target.Close = storage.Close
			return target, nil
		}}
)

// The subjects on Redis.
var (
	// RawRedis is what a service would send that trusts its luck.
	RawRedis = &Subject{Name: "raw SET NX + SET, GET", Store: InRedis, Lacks: "no HTTP, fingerprint, token or headers",
		Open: func(b *Backends, app *App) (*Target, error) { return rawRedis(b.Redis, app.Work), nil }}

	// BlindSet is what a completion would be that looks at nothing.
	BlindSet = &Subject{Name: "a blind SET", Store: InRedis, Lacks: "no token is compared"}

	RedisLeast = &Subject{Name: "the least, Redis", Store: InRedis, Lacks: leastLacks,
		Open: func(b *Backends, app *App) (*Target, error) {
			if err := leastComplete.Load(context.Background(), b.Redis).Err(); err != nil {
				return nil, err
			}
			return NetHTTP(&least{leastRedis{b.Redis}, app}), nil
		}}

	Redis = &Subject{Name: "idempotency, Redis", Store: InRedis, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) { return overLibrary(redisStore(b), app) }}

	RedisPipeline = &Subject{Name: "idempotency, Redis, AutoPipeline", Store: InRedis, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overLibrary(idempotency.NewRedisStore(b.Pipeline, idempotency.RedisOptions{}), app)
		}}

	FiberRedis = &Subject{Name: "fiber v3, Redis", Store: InRedis,
		Lacks: fiberLacks + "; duplicates are kept apart within one process only",
		Open: func(b *Backends, app *App) (*Target, error) {
			return overFiber(app, fiberredis.NewFromConnection(b.Redis)), nil
		}}
)

// The subjects on PostgreSQL. What they take beside single statements written by hand is measured in pgxstore.
var (
	PostgresLeast = &Subject{Name: "the least, PostgreSQL", Store: InPostgres, Lacks: leastLacks + "; nobody deletes what has expired",
		Open: func(b *Backends, app *App) (*Target, error) {
			_, err := b.Postgres.Exec(context.Background(), leastTable)
			return NetHTTP(&least{leastPostgres{b.Postgres}, app}), err
		}}

	Postgres = &Subject{Name: "idempotency, PostgreSQL", Store: InPostgres, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) {
			return overLibrary(pgxstore.New(b.Postgres, pgxstore.Options{}), app)
		}}
)

func redisStore(b *Backends) idempotency.Store {
	return idempotency.NewRedisStore(b.Redis, idempotency.RedisOptions{})
}

// rawHead is about as long as what a record has in front of the body.
var rawHead = strings.Repeat("x", 430-200)

func rawRedis(client *redis.Client, work Work) *Target {
	ctx, record := context.Background(), rawHead+string(work.answer())
	do := func(key string) error {
		if err := client.SetArgs(ctx, key, rawHead, redis.SetArgs{Mode: "NX", TTL: lease}).Err(); err != nil {
			return err
		}
		return client.Set(ctx, key, record, ttl).Err()
	}
	return &Target{raw: true, Worker: func(c Call) Worker {
		if c.Path == Replay {
			return &rawWorker{func(key string) error { return found(client.Get(ctx, key), len(record)) }, work}
		}
		return &rawWorker{do, work}
	}}
}

func found(get *redis.StringCmd, length int) error {
	value, err := get.Result()
	if err == nil && len(value) != length {
		err = fmt.Errorf("benchmark: %d bytes found, not %d", len(value), length)
	}
	return err
}

const fiberLacks = "no fingerprint: a reused key replays the answer to another request; no scope by user or path; " +
	"no lease or token; times include fiber's own routing"

func overFiber(app *App, storage fiber.Storage) *Target {
	f := fiber.New()
	f.Use(fiberidempotency.New(fiberidempotency.Config{
		KeyHeader: keyHeader, Storage: storage, Next: func(c fiber.Ctx) bool { return c.Method() != fiber.MethodPost },
	}))
	f.All(path, func(c fiber.Ctx) error {
		app.enter()
		_ = c.Body()
		c.Set("Content-Type", contentType[0])
		c.Set("Location", location[0])
		c.Set("X-Request-Id", requestID[0])
		c.Set("Cache-Control", cacheControl[0])
		return c.Status(app.Status).Send(app.Work.answer())
	})
	return fastHTTP(f.Handler())
}
