/* idempotency: checkpoints */
-- Returns the steps of an operation to the claim that holds its record; whether the record exists; and whether the
-- claim still holds the record or may restore it.
--   $1 operation, $2 token
SELECT r.step_names, r.step_results, coalesce(r.expires_at > statement_timestamp(), false), coalesce((r.token = $2::uuid AND (r.expires_at <= statement_timestamp() OR r.status IS NULL AND r.lease_until IS NOT NULL)), true)
FROM (SELECT) AS question LEFT JOIN "idempotency_records" r ON r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours'
ORDER BY r.expires_at DESC LIMIT 1
