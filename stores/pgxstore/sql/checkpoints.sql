/* idempotency: checkpoints */
-- Returns the steps of an operation to the claim that holds its record; whether the record exists; and whether the
-- claim still holds the record or may restore it.
--   $1 operation, $2 token
SELECT r.step_names, r.step_results, coalesce(r.expires_at > {now}, false), coalesce({own}, true)
FROM (SELECT) AS question LEFT JOIN {records} r ON r.operation = $1::uuid{in_reach}{newest}
