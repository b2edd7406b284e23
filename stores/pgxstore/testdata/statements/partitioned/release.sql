/* idempotency: release */
-- Releases the record of a claim for the next attempt. If the record was released before, the statement changes
-- nothing.
--   $1 operation, $2 token, $3 time to live in microseconds, $4 reason of the end
UPDATE "idempotency_records" r SET
    lease_until = NULL, note = $4::text,
    expires_at = CASE WHEN r.lease_until IS NULL THEN r.expires_at ELSE (statement_timestamp() + $3::bigint * interval '1 microsecond') END,
    expires_minute = CASE WHEN r.lease_until IS NULL THEN r.expires_minute ELSE date_bin('1 minute', (statement_timestamp() + $3::bigint * interval '1 microsecond'), 'epoch') END
WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.token = $2::uuid AND r.status IS NULL AND r.expires_at > statement_timestamp()
