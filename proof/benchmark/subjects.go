package benchmark

import (
	"context"
	"time"

	fiber "github.com/gofiber/fiber/v3"
	fiberidempotency "github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/gofiber/fiber/v3/middleware/session"
	fiberredis "github.com/gofiber/storage/redis/v3"

	"github.com/idempotency-go/idempotency"
)

const (
	lease = time.Minute
	ttl   = 24 * time.Hour
)

// The subjects with App as the handler.
var (
	BareHandler = &Subject{Name: "bare handler", Store: InMemory, Lacks: "everything",
		Open: func(_ *Backends, app *App) (*Target, error) { return NetHTTP(app), nil }}

	MemoryLeast = &Subject{Name: "the least, memory", Store: InMemory, Lacks: leastLacks + "; nothing expires",
		Open: func(_ *Backends, app *App) (*Target, error) { return NetHTTP(&least{newLeastMemory(), app}), nil }}

	RedisLeast = &Subject{Name: "the least, Redis", Store: InRedis, Lacks: leastLacks,
		Open: func(b *Backends, app *App) (*Target, error) {
			err := leastComplete.Load(context.Background(), b.Redis).Err()
			return NetHTTP(&least{leastRedis{b.Redis}, app}), err
		}}

	PostgresLeast = &Subject{Name: "the least, PostgreSQL", Store: InPostgres,
		Lacks: leastLacks + "; nobody deletes what has expired",
		Open: func(b *Backends, app *App) (*Target, error) {
			_, err := b.Postgres.Exec(context.Background(), leastTable)
			return NetHTTP(&least{leastPostgres{b.Postgres}, app}), err
		}}

	// Memory has a new store for each batch, because a batch must not find the records of an earlier batch.
	Memory = &Subject{Name: "idempotency, memory", Store: InMemory, Mark: ReplayMark,
		Open: func(_ *Backends, app *App) (*Target, error) {
			return newLibraryTarget(idempotency.NewMemoryStore(idempotency.MemoryOptions{MaxBytes: 1 << 40}), app)
		}}

	Redis    = newLibrarySubject(InRedis)
	SQLite   = newLibrarySubject(InSQLite)
	Postgres = newLibrarySubject(InPostgres)
	MariaDB  = newLibrarySubject(InMariaDB)
	DynamoDB = newLibrarySubject(InDynamoDB)

	// FiberMemory makes a storage like the default of the middleware, because Close cannot reach the default storage.
	FiberMemory = &Subject{Name: "fiber v3, memory", Store: InMemory, Lacks: fiberLacks,
		Open: func(_ *Backends, app *App) (*Target, error) {
			storage := session.NewStore().Storage
			target := newFiberTarget(app, storage)
			target.Close = storage.Close
			return target, nil
		}}

	FiberRedis = &Subject{Name: "fiber v3, Redis", Store: InRedis,
		Lacks: fiberLacks + "; duplicates are kept apart within one process only",
		Open: func(b *Backends, app *App) (*Target, error) {
			return newFiberTarget(app, fiberredis.NewFromConnection(b.Redis)), nil
		}}
)

// newLibrarySubject returns a subject of the library on a store of the backends.
func newLibrarySubject(store Store) *Subject {
	return &Subject{Name: "idempotency, " + string(store), Store: store, Mark: ReplayMark,
		Open: func(b *Backends, app *App) (*Target, error) { return newLibraryTarget(b.Records[store].Store, app) }}
}

const fiberLacks = "no fingerprint: a reused key replays the answer to another request; no scope by user or path; " +
	"no lease or token"

func newFiberTarget(app *App, storage fiber.Storage) *Target {
	f := fiber.New()
	f.Use(fiberidempotency.New(fiberidempotency.Config{
		KeyHeader: keyHeader, Storage: storage, Next: func(c fiber.Ctx) bool { return c.Method() != fiber.MethodPost },
	}))
	f.All(paymentsPath, func(c fiber.Ctx) error {
		app.startExecution()
		_ = c.Body()
		c.Set("Content-Type", contentType[0])
		c.Set("Location", location[0])
		c.Set("X-Request-Id", requestID[0])
		c.Set("Cache-Control", cacheControl[0])
		return c.Status(app.Status).Send(app.Work.answerBody())
	})
	return newFastHTTPTarget(f.Handler())
}
