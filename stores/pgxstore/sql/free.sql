/* idempotency: free */
-- Frees the key of an attempt that holds its record. What is left has attempt 0, and is replaced by whoever claims the key next.
-- It stays for a while, because the request for the claim may have been sent twice: the second one must not claim the key again.
-- A repetition finds no lease, and changes nothing. Nor is a released record changed.
--   $1 digest, $2 token, $3 how long that is kept in microseconds
UPDATE {records} r SET
    attempt = CASE WHEN r.lease_until IS NULL THEN r.attempt ELSE 0 END,
    lease_until = NULL,
    step_names = CASE WHEN r.lease_until IS NULL THEN r.step_names END,
    step_results = CASE WHEN r.lease_until IS NULL THEN r.step_results END,
    expires_at = CASE WHEN r.lease_until IS NULL THEN r.expires_at ELSE {after $3} END,
    expires_minute = CASE WHEN r.lease_until IS NULL THEN r.expires_minute ELSE date_bin('1 minute', {after $3}, 'epoch') END
WHERE r.digest = $1::bytea{in_reach} AND r.token = $2::uuid AND r.status IS NULL AND r.expires_at > {now}
