/* idempotency: inspect */
-- Returns the record of a key for an operator.
--   $1 operation
SELECT {columns}, r.completed_at, {size}, {state},
    ARRAY(SELECT coalesce(name, '') FROM {steps} ORDER BY name COLLATE "C"),
    ARRAY(SELECT coalesce(octet_length(result), 0) FROM {steps} ORDER BY name COLLATE "C"), r.resolved
FROM {records} r WHERE r.operation = $1::uuid{in_reach}{newest}
