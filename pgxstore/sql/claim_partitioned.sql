/* idempotency: claim */
-- Claims a key of a table with partitions, or returns the record that holds it, in which case nothing is written.
--
--   $1 digest, $2 fingerprint, $3 what may be claimed beyond what is absent or expired: 1 released, 2 also lapsed
--   $4 user, $5 endpoint, $6 key, $7 operation, $8 attempt, $9 token, $10 created (null: now),
--   $11 lease, $12 time to live (both in microseconds)
--
-- It runs under the lock of the key, by which no other session inserts a record for it. Where the record is does not
-- matter: all partitions are searched, and a new time of expiry moves it to its partition.
WITH seen AS MATERIALIZED (
    SELECT {columns}, {claimable} AS claimable FROM {records} r WHERE r.digest = $1::bytea
), retaken AS (
    UPDATE {records} r SET
        operation   = CASE WHEN r.expires_at <= {now} THEN $7::uuid ELSE r.operation END,
        attempt     = CASE WHEN r.expires_at <= {now} THEN $8::integer ELSE r.attempt + 1 END,
        created_at  = CASE WHEN r.expires_at <= {now} THEN coalesce($10::timestamptz, {now}) ELSE r.created_at END,
        replays     = CASE WHEN r.expires_at <= {now} THEN 0 ELSE r.replays END,
        fingerprint = $2::bytea, token = $9::uuid,
        lease_until = {now} + $11::bigint * interval '1 microsecond',
        expires_at  = {now} + $12::bigint * interval '1 microsecond',
        completed_at = NULL, status = NULL, header = NULL, trailer = NULL, body = NULL
    WHERE r.digest = $1::bytea AND {claimable} AND EXISTS (SELECT FROM seen WHERE seen.claimable)
    RETURNING {columns}
), made AS (
    INSERT INTO {records} AS r (digest, user_id, endpoint, key, operation, attempt, fingerprint, token, created_at,
        lease_until, expires_at)
    SELECT {claim}
    WHERE NOT EXISTS (SELECT FROM seen)
    RETURNING {columns}
)
SELECT operation, attempt, fingerprint, token, created_at, lease_until, now, status, header, trailer, body
FROM seen WHERE NOT claimable
UNION ALL SELECT * FROM retaken
UNION ALL SELECT * FROM made
