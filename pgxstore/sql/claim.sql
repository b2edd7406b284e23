/* idempotency: claim */
-- Claims a key, or returns the record that holds it, in which case nothing is written.
--
--   $1 digest, $2 fingerprint, $3 what may be claimed beyond what is absent or expired: 1 released, 2 also lapsed
--   $4 user, $5 endpoint, $6 key, $7 operation, $8 attempt, $9 token, $10 created (null: now),
--   $11 lease, $12 time to live (both in microseconds)
--
-- There is no row if another session was faster: its record is newer than the snapshot of this statement, which is to
-- be run again then. What the record says is tested once more when it is locked.
WITH seen AS MATERIALIZED (
    SELECT {columns}, {claimable} AS claimable FROM {records} r WHERE r.digest = $1::bytea
), claimed AS (
    INSERT INTO {records} AS r (digest, user_id, endpoint, key, operation, attempt, fingerprint, token, created_at,
        lease_until, expires_at)
    SELECT {claim}
    WHERE NOT EXISTS (SELECT FROM seen WHERE NOT claimable)
    ON CONFLICT (digest) DO UPDATE SET
        operation   = CASE WHEN r.expires_at <= {now} THEN excluded.operation ELSE r.operation END,
        attempt     = CASE WHEN r.expires_at <= {now} THEN excluded.attempt ELSE r.attempt + 1 END,
        created_at  = CASE WHEN r.expires_at <= {now} THEN excluded.created_at ELSE r.created_at END,
        replays     = CASE WHEN r.expires_at <= {now} THEN 0 ELSE r.replays END,
        fingerprint = excluded.fingerprint, token = excluded.token,
        lease_until = excluded.lease_until, expires_at = excluded.expires_at,
        completed_at = NULL, status = NULL, header = NULL, trailer = NULL, body = NULL
    WHERE {claimable}
    RETURNING {columns}
)
SELECT operation, attempt, fingerprint, token, created_at, lease_until, now, status, header, trailer, body
FROM seen WHERE NOT claimable
UNION ALL SELECT * FROM claimed
