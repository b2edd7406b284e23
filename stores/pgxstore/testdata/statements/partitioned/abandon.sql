/* idempotency: abandon */
-- Makes the lease of a claim lapse now.
--   $1 operation, $2 token, $3 reason of the end
UPDATE "idempotency_records" r SET lease_until = least(r.lease_until, statement_timestamp()), note = $3::text
WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL AND r.expires_at > statement_timestamp()
