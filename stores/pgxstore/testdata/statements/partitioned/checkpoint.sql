/* idempotency: checkpoint */
-- Stores the result of a step, unless the operation has a result of that name.
--   $1 operation, $2 token, $3 name, $4 result
UPDATE "idempotency_records" r SET
    step_names = array_append(r.step_names, $3::text), step_results = array_append(r.step_results, $4::bytea)
WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours' AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL
    AND r.expires_at > statement_timestamp() AND ($3::text = ANY (r.step_names)) IS NOT TRUE
