/* idempotency: abandon */
-- Makes the lease of a claim lapse now.
--   $1 operation, $2 token, $3 reason of the end
UPDATE "idempotency_records" r SET lease_until = least(r.lease_until, statement_timestamp()), note = $3::text
WHERE r.operation = $1::uuid AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL AND r.expires_at > statement_timestamp()
