/* idempotency: claim */
-- Claims a key, and returns the record that held the key before. The last column is the outcome:
--
--   null  The key is held by the returned record. Nothing was written.
--   0     Another session has inserted, changed or deleted the record since this statement took its snapshot. Repeat the
--         statement.
--   -1    The user has too many records for another one. Nothing was written.
--   n     The key is claimed, and n is the number of the attempt.
--
--   $1 operation, $2 fingerprint, $3 records that may be claimed beside absent and expired ones: 1 released, 2 also abandoned
--   $4 user, $5 endpoint, $6 key, $7 token, $8 lease, $9 time to live (both in microseconds)
--
-- A function does the claiming, because a statement that can write takes more than twice as long to start as a
-- statement that can only read. A replay does not call the function. The function returns a value, not rows, because
-- a second source of rows makes the start of the statement take half as long again.
SELECT r.user_id, r.endpoint, r.key, r.attempt, r.fingerprint, r.token, r.created_at,
    r.lease_until, r.expires_at, statement_timestamp() AS now, r.completed_at IS NOT NULL, r.status, r.header, r.trailer, r.body, r.note,
    r.status IS NOT NULL AND current_setting('synchronous_standby_names') <> ''
        AND NOT pg_is_in_recovery() AS awaited, CASE WHEN r.status IS NULL OR r.expires_at <= statement_timestamp() THEN "idempotency_records_claim_day"($1::uuid, $2::bytea,
    $3::integer, $4::text, $5::text, $6::text, $7::uuid, $8::bigint, $9::bigint, statement_timestamp(), r.token, r.status,
    r.expires_at, r.fingerprint, r.lease_until, r.completed_at, r.attempt::integer, r.user_id, r.endpoint, r.key) END
FROM (SELECT) AS question LEFT JOIN "idempotency_records" r ON r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours'
ORDER BY r.expires_at DESC LIMIT 1
