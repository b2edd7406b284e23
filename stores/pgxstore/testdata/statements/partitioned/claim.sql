/* idempotency: claim */
-- Returns the record that holds a key, in which case nothing is written, or else claims the key. The last column tells
-- which: it is null if the key is held; 0 if another session was faster, which has made, changed or deleted the record
-- since this statement took its snapshot, and the statement is to be run again; or else the number of the attempt, and
-- the record is the former one.
--
--   $1 digest, $2 fingerprint, $3 what may be claimed beyond what is absent or expired: 1 released, 2 also lapsed
--   $4 user, $5 endpoint, $6 key, $7 token, $8 lease, $9 time to live (both in microseconds)
--
-- What claims is a function because a statement that can write takes more than twice as long to begin as one that can
-- only read; and one that returns a value, not rows, because to begin a second source of rows takes half as long again.
-- For a record that is to be replayed it is not called.
SELECT r.user_id, r.endpoint, r.key, r.attempt, r.fingerprint, r.token, r.created_at,
    r.lease_until, r.expires_at, statement_timestamp() AS now, r.completed_at IS NOT NULL, r.status, r.header, r.trailer, r.body, r.note,
    r.status IS NOT NULL AND current_setting('synchronous_standby_names') <> ''
        AND NOT pg_is_in_recovery() AS awaited, CASE WHEN r.status IS NULL OR r.expires_at <= statement_timestamp() THEN "idempotency_records_claim_day"($1::bytea, $2::bytea,
    $3::integer, $4::text, $5::text, $6::text, $7::uuid, $8::bigint, $9::bigint, statement_timestamp(), r.token, r.status,
    r.expires_at, r.fingerprint, r.lease_until, r.completed_at, r.attempt::integer, r.user_id, r.endpoint, r.key) END
FROM (SELECT) AS question LEFT JOIN "idempotency_records" r ON r.digest = $1::bytea AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours'
ORDER BY r.expires_at DESC LIMIT 1
