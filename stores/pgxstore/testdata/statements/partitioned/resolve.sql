/* idempotency: resolve */
-- Ends an abandoned operation, with an answer or for another attempt, unless the record has changed since it was
-- shown to an operator. The new token takes the claim from its owner. Without an answer, the record keeps its steps
-- except for $7.
--   $1 operation, $2 creation, $3 attempt, $4 new token, $5 time to live in microseconds, $6 operator, reason and outcome
--   $7 names of steps to remove
--   $8 status, $9 header, $10 trailer, $11 body, $12 note; null without an answer
UPDATE "idempotency_records" r SET
    token = $4::uuid, lease_until = NULL,
    expires_at = (statement_timestamp() + $5::bigint * interval '1 microsecond'), expires_minute = date_bin('1 minute', (statement_timestamp() + $5::bigint * interval '1 microsecond'), 'epoch'),
    completed_at = CASE WHEN $8::integer IS NOT NULL THEN statement_timestamp() END,
    status = $8::integer, header = $9::text, trailer = $10::text, body = $11::bytea, note = $12::text,
    resolved = $6::bytea,
    (step_names, step_results) = (
        SELECT array_agg(name), array_agg(result) FROM unnest(r.step_names, r.step_results) AS step (name, result)
        WHERE $8::integer IS NULL AND (name = ANY ($7::text[])) IS NOT TRUE)
WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.expires_at > statement_timestamp()
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END = 'abandoned' AND (octet_length(r.fingerprint) = 32 AND r.attempt BETWEEN 1 AND 2147483646
        AND (r.status IS NULL) = (r.completed_at IS NULL)
        AND (r.status IS NULL OR r.status IN (0, 101) OR r.status BETWEEN 200 AND 999)
        AND (r.lease_until IS NULL OR isfinite(r.lease_until)))
