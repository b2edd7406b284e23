/* idempotency: forget */
-- Deletes a record, unless the record has changed since it was shown to an operator, or the operation is running. A
-- concurrent claim or renewal is noticed, because PostgreSQL checks the condition again after it has locked the row.
--   $1 operation, $2 creation, $3 attempt, $4 state
DELETE FROM {records} r WHERE r.operation = $1::uuid{in_reach} AND r.expires_at > {now}
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND {state} = $4::text AND {state} <> 'running'
