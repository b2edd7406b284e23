/* idempotency: forget */
-- Deletes a record, unless the record has changed since it was shown to an operator, or the operation is running. A
-- concurrent claim or renewal is noticed, because PostgreSQL checks the condition again after it has locked the row.
--   $1 operation, $2 creation, $3 attempt, $4 state
DELETE FROM "idempotency_records" r WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.expires_at > statement_timestamp()
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END = $4::text AND CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END <> 'running'
