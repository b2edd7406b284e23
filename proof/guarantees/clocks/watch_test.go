//go:build linux

package clocks_test

import (
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// service is server processes that work on one store.
type service struct {
	caller
	server    server
	ledger    *ledger
	effects   func(key string) []string // what has happened, as the answers to those who did it
	snapshot  func() map[string]string  // each record as it is, by what server.recordOf returns
	processes []child
}

func newService(t testing.TB, k kind) *service {
	s := &service{caller: newCaller(t), server: k.start(t), ledger: newLedger(t)}
	s.effects, s.snapshot = s.server.watch(t, s.ledger)
	return s
}

// run adds a process. Its transactions at /re-execute may be idle for so long.
func (s *service) run(lease, idle time.Duration) {
	s.processes = append(s.processes, s.start(config{Lease: lease, IdleTimeout: idle}))
}

func (s *service) start(c config) child {
	c.Kind, c.URL, c.Password, c.Ledger = s.server.kind.name, s.server.url, s.server.password, s.ledger.url
	return startChild(s.t, c)
}

// watch returns functions that tell the effects of a key, and everything that the store has.
func (s server) watch(t testing.TB, l *ledger) (effects func(key string) []string, snapshot func() map[string]string) {
	fromLedger := func(key string) []string {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.effects[key]
	}
	if !s.kind.postgres {
		return fromLedger, s.watchRedis(t)
	}
	pool := s.pool(t)
	query := func(sql string, args ...any) pgx.Rows {
		rows, err := pool.Query(t.Context(), sql, args...)
		require.NoError(t, err)
		return rows
	}
	snapshot = func() map[string]string {
		records := map[string]string{}
		var key, record string
		rows := query("select endpoint || ' ' || key, r::text from idempotency_records r")
		_, err := pgx.ForEachRow(rows, []any{&key, &record}, func() error {
			records[key] = record
			return nil
		})
		require.NoError(t, err)
		return records
	}
	if !s.kind.rows {
		return fromLedger, snapshot
	}
	_, err := pool.Exec(t.Context(), "create table effects (key text, answer text)")
	require.NoError(t, err)
	return func(key string) []string {
		answers, err := pgx.CollectRows(query("select answer from effects where key = $1", key), pgx.RowTo[string])
		require.NoError(t, err)
		return answers
	}, snapshot
}

func (s server) watchRedis(t testing.TB) func() map[string]string {
	client := s.client()
	t.Cleanup(func() { _ = client.Close() })
	return func() map[string]string {
		records := map[string]string{}
		names, err := client.Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		for _, name := range names {
			record, err := client.Get(t.Context(), name).Result()
			require.NoError(t, err)
			expires, err := client.PExpireTime(t.Context(), name).Result()
			require.NoError(t, err)
			records[name] = fmt.Sprintf("%q expires at %v", record, expires)
		}
		return records
	}
}

// recordOf returns what the snapshot has the record of a key under.
func (s server) recordOf(path, id string) string {
	if s.kind.postgres {
		return "POST " + path + " " + id
	}
	digest := idempotency.Key{User: "single", Endpoint: "POST " + path, ID: id}.Digest()
	return "idempotency:{" + hex.EncodeToString(digest[:]) + "}"
}
