/* idempotency: abandon */
-- Makes the lease of a claim lapse now.
--   $1 operation, $2 token, $3 reason of the end
UPDATE {records} r SET lease_until = least(r.lease_until, {now}), note = $3::text
WHERE r.operation = $1::uuid{in_reach} AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL AND r.expires_at > {now}
