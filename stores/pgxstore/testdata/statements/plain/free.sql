/* idempotency: free */
-- Frees the key of an attempt that holds the record. The row remains with attempt 0 for a while, and the next claim
-- of the key replaces the row. The row protects the key from a delayed duplicate of the freed claim, which would
-- claim the key again. If the record was released or freed before, the statement changes nothing.
--   $1 operation, $2 token, $3 how long the row remains, in microseconds
UPDATE "idempotency_records" r SET
    attempt = CASE WHEN r.lease_until IS NULL THEN r.attempt ELSE 0 END,
    lease_until = NULL,
    step_names = CASE WHEN r.lease_until IS NULL THEN r.step_names END,
    step_results = CASE WHEN r.lease_until IS NULL THEN r.step_results END,
    expires_at = CASE WHEN r.lease_until IS NULL THEN r.expires_at ELSE (statement_timestamp() + $3::bigint * interval '1 microsecond') END,
    expires_minute = CASE WHEN r.lease_until IS NULL THEN r.expires_minute ELSE date_bin('1 minute', (statement_timestamp() + $3::bigint * interval '1 microsecond'), 'epoch') END
WHERE r.operation = $1::uuid AND r.token = $2::uuid AND r.status IS NULL AND r.expires_at > statement_timestamp()
