/* idempotency: release */
--   $1 digest, $2 token
UPDATE {records} r SET lease_until = NULL
WHERE r.digest = $1::bytea AND r.token = $2::uuid AND r.status IS NULL AND r.expires_at > {now}
