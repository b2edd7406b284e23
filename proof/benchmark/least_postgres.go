package benchmark

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// leastPostgres claims by one statement, which also returns the record that is there, and completes by another. Each is a
// transaction of its own. A record has no answer until it is completed.
type leastPostgres struct{ pool *pgxpool.Pool }

// The index is for whoever deletes what has expired. A completion changes nothing that is in an index, so that it makes no
// entries there, and fits into the page of the record.
const (
	leastTable = `
CREATE TABLE IF NOT EXISTS least (
	key text PRIMARY KEY, fingerprint bytea NOT NULL, token bytea NOT NULL, lease_until timestamptz NOT NULL,
	expires_at timestamptz NOT NULL, answer bytea
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS least_expires ON least (expires_at)`

	leastClaim = `
WITH held AS MATERIALIZED (
	SELECT fingerprint, answer FROM least
	WHERE key = $1 AND expires_at > now() AND (answer IS NOT NULL OR lease_until > now())
), claimed AS (
	INSERT INTO least (key, fingerprint, token, lease_until, expires_at)
	SELECT $1, $2, $3, now() + $4::interval, now() + $5::interval WHERE NOT EXISTS (SELECT FROM held)
	ON CONFLICT (key) DO UPDATE SET fingerprint = $2, token = $3, lease_until = excluded.lease_until,
		expires_at = excluded.expires_at, answer = NULL
	WHERE least.expires_at <= now() OR least.answer IS NULL AND least.lease_until <= now()
	RETURNING true
)
SELECT (SELECT true FROM claimed) IS NOT NULL, (SELECT fingerprint FROM held), (SELECT answer FROM held)`

	leastSet = `UPDATE least SET answer = $3 WHERE key = $1 AND token = $2`
)

func (s leastPostgres) claim(ctx context.Context, key string, c *leastCall) (leastState, error) {
	c.begin()
	var ours bool
	var fingerprint, answer []byte
	err := s.pool.QueryRow(ctx, leastClaim, key, c.fingerprint[:], c.token[:], lease, ttl).
		Scan(&ours, &fingerprint, &answer)
	switch {
	case err != nil:
		return 0, err
	case ours:
		return claimed, nil
	case string(fingerprint) != string(c.fingerprint[:]) && fingerprint != nil:
		return reused, nil
	case answer == nil: // also if another session has claimed the key since this statement began
		return running, nil
	}
	rest := c.decode(string(answer))
	c.found.body = answer[len(answer)-len(rest):]
	return done, nil
}

func (s leastPostgres) complete(ctx context.Context, key string, c *leastCall) error {
	c.encode()
	tag, err := s.pool.Exec(ctx, leastSet, key, c.token[:], c.record[leastHead:])
	if err == nil && tag.RowsAffected() == 0 {
		return errLost
	}
	return err
}
