package benchmark

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// leastPostgres claims a key in one statement, and completes the record in a second statement. The claiming statement also
// returns a stored record. Each statement is a separate transaction. An incomplete record has a null answer.
type leastPostgres struct{ pool *pgxpool.Pool }

// The index is for the deletion of expired records. A completion changes only columns without an index, so PostgreSQL
// writes no index entries, and the new row fits into the page of the record.
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

func (s leastPostgres) claimKey(ctx context.Context, key string, c *leastCall) (leastState, error) {
	c.encodeClaim()
	var isClaimed bool
	var fingerprint, answer []byte
	err := s.pool.QueryRow(ctx, leastClaim, key, c.fingerprint[:], c.ownerToken[:], lease, ttl).
		Scan(&isClaimed, &fingerprint, &answer)
	switch {
	case err != nil:
		return 0, err
	case isClaimed:
		return stateClaimed, nil
	case string(fingerprint) != string(c.fingerprint[:]) && fingerprint != nil:
		return stateReused, nil
	case answer == nil: // also after a claim by a concurrent session since the start of this statement
		return stateRunning, nil
	}
	body := c.decodeAnswer(string(answer))
	c.storedAnswer.body = answer[len(answer)-len(body):]
	return stateDone, nil
}

func (s leastPostgres) completeRecord(ctx context.Context, key string, c *leastCall) error {
	c.encodeAnswer()
	tag, err := s.pool.Exec(ctx, leastSet, key, c.ownerToken[:], c.encodedRecord[leastHeadSize:])
	if err == nil && tag.RowsAffected() == 0 {
		return errClaimLost
	}
	return err
}
