//go:build linux

package clocks_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/idempotency-go/idempotency"
)

// service is a group of server processes that use one store.
type service struct {
	caller
	server      server
	ledger      *ledger
	readEffects func(key string) []string // returns the answers of the attempts that had an effect
	readRecords func() map[string]string  // returns all records of the store, by server.recordName
	processes   []child
}

func newService(t testing.TB, k kind) *service {
	s := &service{caller: newCaller(t), server: k.startServer(t), ledger: newLedger(t)}
	s.readEffects, s.readRecords = s.server.watchEffects(t, s.ledger)
	return s
}

// addProcess adds a process with the given lease. Its transactions at /re-execute may be idle for the duration idle.
func (s *service) addProcess(lease, idle time.Duration) {
	s.processes = append(s.processes, s.startProcess(config{Lease: lease, IdleTimeout: idle}))
}

func (s *service) startProcess(c config) child {
	c.Kind, c.URL, c.Password, c.Ledger = s.server.kind.name, s.server.url, s.server.password, s.ledger.url
	return startChild(s.t, c)
}

// watchEffects returns a function that returns the effects of a key, and a function that returns all records of the store.
func (s server) watchEffects(t testing.TB, l *ledger) (effects func(key string) []string, snapshot func() map[string]string) {
	fromLedger := func(key string) []string {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.answersByKey[key]
	}
	if !s.kind.isPostgres {
		return fromLedger, s.readRedisRecords(t)
	}
	pool := s.newTestPool(t)
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
	if !s.kind.hasRows {
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

func (s server) readRedisRecords(t testing.TB) func() map[string]string {
	client := s.newRedisClient()
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

// recordName returns the name of the record of a key in the result of readRecords.
func (s server) recordName(path, id string) string {
	if s.kind.isPostgres {
		return "POST " + path + " " + id
	}
	operation := idempotency.Key{User: "single", Endpoint: "POST " + path, ID: id}.OperationID()
	return "idempotency:{" + operation.String() + "}"
}
