/* idempotency: resolve */
-- Ends an abandoned operation: with an answer, or for another attempt. It does so if the record still is that of the attempt
-- which somebody has been shown. The transaction has the advisory lock of the key, as for forget.sql. The token takes the
-- claim from its owner. Without an answer, the note becomes the last step, in the place of an earlier note.
--   $1 digest, $2 when it was created, $3 attempt, $4 token, $5 time to live in microseconds, $6 note among the steps
--   $7 status, $8 header, $9 trailer, $10 body, $11 note; null without an answer
UPDATE "idempotency_records" r SET
    token = $4::uuid, lease_until = NULL,
    expires_at = (statement_timestamp() + $5::bigint * interval '1 microsecond'), expires_minute = date_bin('1 minute', (statement_timestamp() + $5::bigint * interval '1 microsecond'), 'epoch'),
    completed_at = CASE WHEN $7::integer IS NOT NULL THEN statement_timestamp() END,
    status = $7::integer, header = $8::text, trailer = $9::text, body = $10::bytea, note = $11::text,
    (step_names, step_results) = (
        SELECT array_agg(name), array_agg(result)
        FROM (
            SELECT name, result FROM unnest(r.step_names, r.step_results) AS step (name, result) WHERE name IS DISTINCT FROM '?'
            UNION ALL SELECT '?', $6::bytea
        ) noted
        WHERE $7::integer IS NULL)
WHERE r.digest = $1::bytea AND r.expires_at > statement_timestamp()
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END = 'abandoned' AND (octet_length(r.digest) = 32 AND octet_length(r.fingerprint) = 32 AND r.attempt BETWEEN 1 AND 2147483646
        AND (r.status IS NULL) = (r.completed_at IS NULL)
        AND (r.status IS NULL OR r.status IN (0, 101) OR r.status BETWEEN 200 AND 999)
        AND (r.lease_until IS NULL OR isfinite(r.lease_until)))
