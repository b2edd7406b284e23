/* idempotency: forget */
-- Deletes a record if it still says what somebody has been shown, and nobody is running the operation. A lease that is claimed
-- or renewed meanwhile is seen, because the row is looked at again when it has been locked.
--   $1 digest, $2 when it was created, $3 attempt, $4 state
DELETE FROM "idempotency_records" r WHERE r.digest = $1::bytea AND r.expires_at > statement_timestamp()
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END = $4::text AND CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END <> 'running'
