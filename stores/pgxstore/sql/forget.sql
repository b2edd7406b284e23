/* idempotency: forget */
-- Deletes a record if it still says what somebody has been shown, and nobody is running the operation. A lease that is claimed
-- or renewed meanwhile is seen, because the row is looked at again when it has been locked.
--   $1 digest, $2 when it was created, $3 attempt, $4 state
DELETE FROM {records} r WHERE r.digest = $1::bytea{in_reach} AND r.expires_at > {now}
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND {state} = $4::text AND {state} <> 'running'
