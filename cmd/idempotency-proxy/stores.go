package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/stores/pgxstore"
	"github.com/idempotency-go/idempotency/stores/sqlitestore"
)

// backing is a store with what its server needs. Each function may be nil.
type backing struct {
	idempotency.Store
	check    func(context.Context) error // at start: settings that break a part of the promise, or what is missing
	ping     func(context.Context) error // whether the server can be reached
	maintain func(context.Context)       // removes what has expired, until the context ends
	close    func() error
}

// storeKind is what a URL scheme stands for.
type storeKind struct {
	form string // of the URL, for the operator
	open func(context.Context, *config) (*backing, error)
}

var stores = map[string]storeKind{
	"memory":     {"memory:", openMemory},
	"redis":      {"redis://host:port", openRedis},
	"rediss":     {"rediss://host:port", openRedis},
	"postgres":   {"postgres://host:port/database", openPostgres},
	"postgresql": {"", openPostgres}, // another name of the same
	"sqlite":     {"sqlite:file", openSQLite},
	"dynamodb":   {"dynamodb://table?region=name", openDynamoDB},
}

func storeForms() (forms []string) {
	for _, scheme := range slices.Sorted(maps.Keys(stores)) {
		if form := stores[scheme].form; form != "" {
			forms = append(forms, form)
		}
	}
	return forms
}

// checkTimeout bounds the check of the store.
const checkTimeout = 30 * time.Second

// openStore opens the store and checks it. What weakens its promise is logged, and the operator's to weigh. A store
// that does not work is an error, unless the operator has set -fail-open.
func openStore(ctx context.Context, c *config, log *slog.Logger) (*backing, error) {
	store, err := stores[c.storeURL.Scheme].open(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("-store: %w", err)
	}
	if store.check == nil {
		return store, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	broken := weigh(store.check(ctx), log)
	if broken == nil {
		return store, nil
	}
	if c.failOpen {
		log.Error("the store does not work: requests are not protected", "error", broken)
		return store, nil
	}
	return nil, fmt.Errorf("-store: %w", errors.Join(broken, store.shut()))
}

// weigh logs what is unsafe among the findings of a Check, and returns the others.
func weigh(err error, log *slog.Logger) error {
	var others []error
	for _, finding := range idempotency.Findings(err) {
		if unsafe, ok := errors.AsType[*idempotency.UnsafeSetting](finding); ok {
			log.Warn("unsafe setting of the store", "finding", unsafe.Error())
			continue
		}
		others = append(others, finding)
	}
	return errors.Join(others...)
}

func (b *backing) shut() error {
	if b.close == nil {
		return nil
	}
	return b.close()
}

func openMemory(_ context.Context, c *config) (*backing, error) {
	limit, err := maxBytes(c)
	if err != nil {
		return nil, err
	}
	if c.storeURL.Opaque+c.storeURL.Host+c.storeURL.Path != "" {
		return nil, errors.New("want memory: with nothing behind it")
	}
	opts := idempotency.MemoryOptions{MaxBytes: limit}
	if c.oneUser {
		opts.MaxUserBytes = cmp.Or(limit, math.MaxInt64) // all of it
	}
	return &backing{Store: idempotency.NewMemoryStore(opts)}, nil
}

func openSQLite(ctx context.Context, c *config) (*backing, error) {
	limit, err := maxBytes(c)
	if err != nil {
		return nil, err
	}
	if c.storeURL.Host != "" || c.storeURL.Fragment != "" { // sqlite://dir/file would be /file
		return nil, errors.New("want sqlite:file or sqlite:/directory/file")
	}
	file := cmp.Or(c.storeURL.Opaque, c.storeURL.Path) // sqlite:file or sqlite:/file
	if file == "" {
		return nil, errors.New("the name of the file is missing")
	}
	store, err := sqlitestore.Open(ctx, file, sqlitestore.Options{MaxBytes: limit})
	if err != nil {
		return nil, err
	}
	return &backing{
		Store: store,
		check: store.Check,
		ping:  func(ctx context.Context) error { return weigh(store.Check(ctx), slog.New(slog.DiscardHandler)) },
		close: store.Close,
	}, nil
}

// maxBytes returns the bound on all records that the URL of a store asks for: memory:?max-bytes=1000000000. Zero means
// the default of the store.
func maxBytes(c *config) (n int64, err error) {
	query := c.storeURL.Query()
	for name := range query {
		if name != "max-bytes" {
			return 0, fmt.Errorf("parameter %q is unknown", name)
		}
	}
	text := query.Get("max-bytes")
	if text == "" {
		return 0, nil
	}
	if n, err = strconv.ParseInt(text, 10, 64); err != nil || n <= 0 {
		return 0, errors.New("max-bytes is not a number of bytes")
	}
	return n, nil
}

func openRedis(_ context.Context, c *config) (*backing, error) {
	opts, err := redis.ParseURL(c.store)
	if err != nil {
		return nil, err
	}
	opts.ContextTimeoutEnabled = true
	client := redis.NewClient(opts)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{})
	return &backing{
		Store: store,
		check: store.Check,
		ping:  func(ctx context.Context) error { return client.Ping(ctx).Err() },
		close: client.Close,
	}, nil
}

func openPostgres(ctx context.Context, c *config) (*backing, error) {
	pool, err := pgxpool.New(ctx, c.store)
	if err != nil {
		return nil, err
	}
	if c.migrate {
		if err := pgxstore.Migrate(ctx, pool, pgxstore.Options{}); err != nil {
			pool.Close()
			return nil, err
		}
	}
	store := pgxstore.New(pool, pgxstore.Options{})
	return &backing{
		Store:    store,
		check:    store.Check,
		ping:     pool.Ping,
		maintain: func(ctx context.Context) { store.Janitor(ctx, 0, nil) },
		close:    func() error { pool.Close(); return nil },
	}, nil
}
