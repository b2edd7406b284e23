/* idempotency: checkpoints */
-- Returns the steps of an operation to its owner; whether its record is there; and whether the claim may hold it: it does,
-- or could make it again.
--   $1 digest, $2 token
SELECT r.step_names, r.step_results, coalesce(r.expires_at > statement_timestamp(), false), coalesce((r.token = $2::uuid AND (r.expires_at <= statement_timestamp() OR r.status IS NULL AND r.lease_until IS NOT NULL)), true)
FROM (SELECT) AS question LEFT JOIN "idempotency_records" r ON r.digest = $1::bytea
