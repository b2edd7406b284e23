package benchmark

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/idempotency-go/idempotency"
	"github.com/idempotency-go/idempotency/pgxstore"
)

// measuredAtOnce is how many operations the medians of a size are taken of.
const measuredAtOnce = 400

// GrowRedis lets the store in Redis grow to that many records.
func (b *Backends) GrowRedis(ctx context.Context, most int) ([]Growth, error) {
	if err := b.Reset(ctx); err != nil {
		return nil, err
	}
	many := idempotency.NewRedisStore(b.Pipeline, idempotency.RedisOptions{})
	one := idempotency.NewRedisStore(b.Redis, idempotency.RedisOptions{})
	empty, err := b.redisMemory(ctx)
	if err != nil {
		return nil, err
	}
	var all []Growth
	held := 0
	for _, n := range sizes(min(most, 1_000_000)) {
		if err := executeMany(ctx, many, n-held); err != nil {
			return nil, err
		}
		g, err := b.growth(ctx, one, n)
		if err != nil {
			return nil, err
		}
		held = n + measuredAtOnce
		used, err := b.redisMemory(ctx)
		if err != nil {
			return nil, err
		}
		g.Stored = (used - empty) / float64(held)
		if g.Content, err = b.redisContent(ctx); err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, b.Reset(ctx)
}

// growth measures a store that holds n records.
func (b *Backends) growth(ctx context.Context, store idempotency.Store, n int) (Growth, error) {
	g, ids := Growth{Records: n}, NewKeys(measuredAtOnce)
	var err1, err2 error
	g.First, err1 = median(ctx, store, ids, execute)
	g.Replay, err2 = median(ctx, store, ids, replay)
	return g, errors.Join(err1, err2)
}

// executeMany fills the store from all connections.
func executeMany(ctx context.Context, store idempotency.Store, n int) error {
	var wg sync.WaitGroup
	errs := make([]error, connections)
	for worker := range connections {
		wg.Go(func() {
			share := n / connections
			if worker < n%connections {
				share++
			}
			for _, id := range NewKeys(share) {
				if err := execute(ctx, store, id); err != nil {
					errs[worker] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// redisMemory returns how much memory the data takes: all that Redis uses but what its clients do.
func (b *Backends) redisMemory(ctx context.Context) (float64, error) {
	info, err := b.Redis.Info(ctx, "memory").Result()
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

// GrowPostgres lets the store in PostgreSQL grow to that many records. Most of them are copies under other keys.
func (b *Backends) GrowPostgres(ctx context.Context, most int) ([]Growth, error) {
	if err := b.Reset(ctx); err != nil {
		return nil, err
	}
	store := pgxstore.New(b.Postgres, pgxstore.Options{})
	if err := execute(ctx, store, NewKeys(1)[0]); err != nil {
		return nil, err
	}
	var all []Growth
	held := 1
	for _, n := range sizes(most) {
		if err := b.copyRecords(ctx, held, n); err != nil {
			return nil, err
		}
		g, err := b.growth(ctx, store, n)
		if err != nil {
			return nil, err
		}
		held = n + measuredAtOnce
		if err := b.Postgres.QueryRow(ctx, `SELECT pg_total_relation_size('idempotency_records')`).Scan(&g.Stored); err != nil {
			return nil, err
		}
		g.Stored /= float64(held)
		g.Content = contentSize(NewKeys(1)[0])
		all = append(all, g)
	}
	return all, b.Reset(ctx)
}

// copyRecords makes the table hold n records, of which it holds some.
func (b *Backends) copyRecords(ctx context.Context, held, n int) error {
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
