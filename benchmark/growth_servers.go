package benchmark

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// measuredAtOnce is how many operations the medians of a size are taken of.
const measuredAtOnce = 1000

// GrowRedis lets the store in Redis grow to that many records.
func (b *Backends) GrowRedis(ctx context.Context, most int) ([]Growth, error) {
	if err := b.Reset(ctx); err != nil {
		return nil, err
	}
	empty, err := b.redisMemory(ctx)
	if err != nil {
		return nil, err
	}
	all, err := grow(ctx, most, growing{
		store:     idempotency.NewRedisStore(b.Redis, idempotency.RedisOptions{}),
		more:      b.copyRedis,
		roundTrip: func() error { return b.Redis.Ping(ctx).Err() },
		size:      func(g *Growth, held int) error { return b.sizeInRedis(ctx, g, empty, held) },
	})
	// At once, it would take longer than the client has patience.
	return all, errors.Join(err, b.Redis.FlushAllAsync(ctx).Err())
}

// growing is how a store grows, and is measured.
type growing struct {
	store     idempotency.Store
	more      func(ctx context.Context, held, n int) error // copies records until there are n of them
	roundTrip func() error
	size      func(g *Growth, held int) error
}

// grow lets the store execute as many requests as the smallest size has. Further records are copies of those, under
// other keys.
func grow(ctx context.Context, most int, store growing) ([]Growth, error) {
	var all []Growth
	held := 0
	for _, n := range sizes(most) {
		fill := func() error { return store.more(ctx, held, n) }
		if held == 0 {
			fill = func() error { return executeMany(ctx, store.store, n) }
		}
		if err := fill(); err != nil {
			return nil, err
		}
		g, err := store.measure(ctx, n)
		if err != nil {
			return nil, err
		}
		held = n + measuredAtOnce
		if err := store.size(&g, held); err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

// measure takes a store that holds n records. The steps take turns, so that the machine treats them alike.
func (s growing) measure(ctx context.Context, n int) (Growth, error) {
	var first, again, trip durations
	for _, id := range NewKeys(measuredAtOnce) {
		err := errors.Join(
			first.add(func() error { return execute(ctx, s.store, id) }),
			again.add(func() error { return replay(ctx, s.store, id) }),
			trip.add(s.roundTrip))
		if err != nil {
			return Growth{}, err
		}
	}
	return Growth{Records: n, First: first.median(), Replay: again.median(), RoundTrip: trip.median()}, nil
}

// executeMany fills the store from all connections.
func executeMany(ctx context.Context, store idempotency.Store, n int) error {
	var wg sync.WaitGroup
	var errs []error
	var mu sync.Mutex
	for keys := range slices.Chunk(NewKeys(n), n/connections+1) {
		wg.Go(func() {
			_, err := each(keys, func(id string) error { return execute(ctx, store, id) })
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// copyRedis makes Redis hold n records, of which it holds some.
func (b *Backends) copyRedis(ctx context.Context, held, n int) error {
	name, err := b.Redis.RandomKey(ctx).Result()
	if err != nil {
		return err
	}
	const script = `for i = ARGV[1], ARGV[2] do
		redis.call('COPY', KEYS[1], ARGV[3] .. string.format('%016x', i) .. ARGV[4])
	end`
	last := len(name) - 1 // which may close the hash tag
	const together = 10_000
	for ; held < n; held += together {
		err := b.Redis.Eval(ctx, script, []string{name}, held, min(held+together, n)-1, name[:last-16], name[last:]).Err()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	return nil
}

// sizeInRedis measures what each of so many records takes.
func (b *Backends) sizeInRedis(ctx context.Context, g *Growth, empty float64, held int) error {
	records, err := b.Redis.DBSize(ctx).Result()
	if err != nil {
		return err
	}
	if records != int64(held) {
		return fmt.Errorf("benchmark: Redis holds %d records, not %d", records, held)
	}
	used, err := b.redisMemory(ctx)
	if err != nil {
		return err
	}
	g.Stored = (used - empty) / float64(held)
	g.Content, err = b.redisContent(ctx)
	g.Least = g.Content + redisOverhead
	return err
}

// redisOverhead is the least that Redis 7 takes for a key with a string and an expiry: entries of 24 bytes in two hash
// tables, their pointers, an object of 16 bytes, and the heads and ends of two strings. It counts no bytes that the
// allocator rounds up, and no room in the tables that is free.
const redisOverhead = 2*24 + 2*8 + 16 + (3 + 1) + (5 + 1)

// redisMemory returns how much memory the data takes: all that Redis uses but what its clients do. It closes all
// connections but its own, as what Redis says of idle clients may be a second old.
func (b *Backends) redisMemory(ctx context.Context) (float64, error) {
	conn := b.Redis.Conn()
	defer conn.Close()
	if err := conn.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		return 0, err
	}
	info, err := conn.Info(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	used, err1 := infoField(info, "used_memory")
	clients, err2 := infoField(info, "mem_clients_normal")
	return used - clients, errors.Join(err1, err2)
}

func infoField(info, name string) (float64, error) {
	_, value, ok := strings.Cut(info, "\r\n"+name+":")
	if !ok {
		return 0, fmt.Errorf("benchmark: Redis does not report %s", name)
	}
	value, _, _ = strings.Cut(value, "\r\n")
	return strconv.ParseFloat(value, 64)
}

// redisContent returns the bytes of name and value of a record.
func (b *Backends) redisContent(ctx context.Context) (float64, error) {
	name, err := b.Redis.RandomKey(ctx).Result()
	if err != nil {
		return 0, err
	}
	n, err := b.Redis.StrLen(ctx, name).Result()
	return float64(len(name)) + float64(n), err
}

// GrowPostgres lets the store in PostgreSQL grow to that many records.
func (b *Backends) GrowPostgres(ctx context.Context, most int) ([]Growth, error) {
	if err := b.Reset(ctx); err != nil {
		return nil, err
	}
	all, err := grow(ctx, most, growing{
		store:     pgxstore.New(b.Postgres, pgxstore.Options{}),
		more:      b.copyPostgres,
		roundTrip: func() error { return b.Postgres.Ping(ctx) },
		size:      func(g *Growth, held int) error { return b.sizeInPostgres(ctx, g, held) },
	})
	return all, errors.Join(err, b.Reset(ctx))
}

// sizeInPostgres measures what each of so many records takes.
func (b *Backends) sizeInPostgres(ctx context.Context, g *Growth, held int) error {
	var records, size int64
	err := b.Postgres.QueryRow(ctx, `
		SELECT count(*), pg_total_relation_size('idempotency_records') FROM idempotency_records`).Scan(&records, &size)
	if err != nil {
		return err
	}
	if records != int64(held) {
		return fmt.Errorf("benchmark: PostgreSQL holds %d records, not %d", records, held)
	}
	g.Stored = float64(size) / float64(held)
	g.Content = contentSize(NewKeys(1)[0])
	return nil
}

// copyPostgres makes the table hold n records, of which it holds some.
func (b *Backends) copyPostgres(ctx context.Context, held, n int) error {
	var columns, values string
	err := b.Postgres.QueryRow(ctx, `
		SELECT string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position),
			string_agg(CASE column_name
				WHEN 'digest' THEN 'sha256(int8send(g))'
				ELSE 't.' || quote_ident(column_name) END, ', ' ORDER BY ordinal_position)
		FROM information_schema.columns
		WHERE table_name = 'idempotency_records' AND is_generated = 'NEVER'`).Scan(&columns, &values)
	if err != nil {
		return err
	}
	_, err = b.Postgres.Exec(ctx, fmt.Sprintf(`
		INSERT INTO idempotency_records (%s)
		SELECT %s FROM (SELECT * FROM idempotency_records WHERE status IS NOT NULL LIMIT 1) t,
			generate_series(%d, %d) g`, columns, values, held, n-1))
	if err != nil {
		return err
	}
	_, err = b.Postgres.Exec(ctx, `VACUUM ANALYZE idempotency_records`)
	return err
}
