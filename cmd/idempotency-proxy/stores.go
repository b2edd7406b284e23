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

// storeBackend is a store with functions for its server. Each function may be nil.
type storeBackend struct {
	idempotency.Store
	checkStore    func(context.Context) error // at start: returns unsafe settings and missing permissions
	pingServer    func(context.Context) error // for /readyz
	removeExpired func(context.Context)       // runs until the context ends
	closeClient   func() error
}

// storeKind is the kind of store for a URL scheme.
type storeKind struct {
	urlForm           string // for messages to the operator; empty for an alias
	openBackend       func(context.Context, *config) (*storeBackend, error)
	countsUserRecords bool // heeds -max-user-records
}

var storeKinds = map[string]storeKind{
	"memory":     {"memory:", openMemory, false},
	"redis":      {"redis://host:port", openRedis, true},
	"rediss":     {"rediss://host:port", openRedis, true},
	"postgres":   {"postgres://host:port/database", openPostgres, true},
	"postgresql": {"", openPostgres, true}, // an alias
	"sqlite":     {"sqlite:file", openSQLite, true},
	"dynamodb":   {"dynamodb://table?region=name", openDynamoDB, false},
}

func listURLForms() (forms []string) {
	for _, scheme := range slices.Sorted(maps.Keys(storeKinds)) {
		if form := storeKinds[scheme].urlForm; form != "" {
			forms = append(forms, form)
		}
	}
	return forms
}

// checkTimeout bounds the check of the store at start.
const checkTimeout = 30 * time.Second

// openStore opens and checks the store. Unsafe settings are logged for the operator. openStore returns an error for a broken store
// or, with -fail-open, logs the error.
func openStore(ctx context.Context, c *config, log *slog.Logger) (*storeBackend, error) {
	store, err := storeKinds[c.storeURL.Scheme].openBackend(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("-store: %w", err)
	}
	if store.checkStore == nil {
		return store, nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	broken := logUnsafeSettings(store.checkStore(ctx), log)
	if broken == nil {
		return store, nil
	}
	if c.failOpen {
		log.Error("the store does not work: requests are not protected", "error", broken)
		return store, nil
	}
	return nil, fmt.Errorf("-store: %w", errors.Join(broken, store.closeBackend()))
}

// logUnsafeSettings logs the unsafe settings among the findings of a Check, and returns all other findings.
func logUnsafeSettings(err error, log *slog.Logger) error {
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

func (b *storeBackend) closeBackend() error {
	if b.closeClient == nil {
		return nil
	}
	return b.closeClient()
}

func openMemory(_ context.Context, c *config) (*storeBackend, error) {
	limit, err := parseMaxBytes(c)
	if err != nil {
		return nil, err
	}
	if c.storeURL.Opaque+c.storeURL.Host+c.storeURL.Path != "" {
		return nil, errors.New("want memory: with nothing behind it")
	}
	opts := idempotency.MemoryOptions{MaxBytes: limit}
	if c.isSingleUser {
		opts.MaxUserBytes = cmp.Or(limit, math.MaxInt64) // the single user may use all bytes
	}
	return &storeBackend{Store: idempotency.NewMemoryStore(opts)}, nil
}

func openSQLite(ctx context.Context, c *config) (*storeBackend, error) {
	limit, err := parseMaxBytes(c)
	if err != nil {
		return nil, err
	}
	if c.storeURL.Host != "" || c.storeURL.Fragment != "" { // sqlite://dir/file would mean /file
		return nil, errors.New("want sqlite:file or sqlite:/directory/file")
	}
	file := cmp.Or(c.storeURL.Opaque, c.storeURL.Path) // sqlite:file or sqlite:/file
	if file == "" {
		return nil, errors.New("the name of the file is missing")
	}
	store, err := sqlitestore.Open(ctx, file, sqlitestore.Options{MaxBytes: limit, MaxUserRecords: c.maxUserRecords})
	if err != nil {
		return nil, err
	}
	return &storeBackend{
		Store:      store,
		checkStore: store.Check,
		pingServer: func(ctx context.Context) error {
			return logUnsafeSettings(store.Check(ctx), slog.New(slog.DiscardHandler))
		},
		closeClient: store.Close,
	}, nil
}

// parseMaxBytes returns the parameter max-bytes of the URL, for example memory:?max-bytes=1000000000. max-bytes bounds all records
// together. Zero means the default of the store.
func parseMaxBytes(c *config) (n int64, err error) {
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

func openRedis(_ context.Context, c *config) (*storeBackend, error) {
	opts, err := redis.ParseURL(c.storeAddress)
	if err != nil {
		return nil, err
	}
	opts.ContextTimeoutEnabled = true
	client := redis.NewClient(opts)
	store := idempotency.NewRedisStore(client, idempotency.RedisOptions{MaxUserRecords: c.maxUserRecords})
	return &storeBackend{
		Store:       store,
		checkStore:  store.Check,
		pingServer:  func(ctx context.Context) error { return client.Ping(ctx).Err() },
		closeClient: client.Close,
	}, nil
}

func openPostgres(ctx context.Context, c *config) (*storeBackend, error) {
	pool, err := pgxpool.New(ctx, c.storeAddress)
	if err != nil {
		return nil, err
	}
	storeOpts := pgxstore.Options{MaxUserRecords: c.maxUserRecords}
	if c.shouldMigrate {
		if err := pgxstore.Migrate(ctx, pool, storeOpts); err != nil {
			pool.Close()
			return nil, err
		}
	}
	store := pgxstore.New(pool, storeOpts)
	return &storeBackend{
		Store:         store,
		checkStore:    store.Check,
		pingServer:    pool.Ping,
		removeExpired: func(ctx context.Context) { store.Janitor(ctx, 0, nil) },
		closeClient:   func() error { pool.Close(); return nil },
	}, nil
}
