/* idempotency: extend */
-- Renews the lease of a claim.
--   $1 operation, $2 token, $3 lease in microseconds
UPDATE "idempotency_records" r SET
    lease_until = (statement_timestamp() + $3::bigint * interval '1 microsecond'),
    expires_at = greatest(r.expires_at, (statement_timestamp() + $3::bigint * interval '1 microsecond')),
    expires_minute = date_bin('1 minute', greatest(r.expires_at, (statement_timestamp() + $3::bigint * interval '1 microsecond')), 'epoch')
WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL
    AND r.expires_at > statement_timestamp()
