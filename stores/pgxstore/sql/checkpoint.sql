/* idempotency: checkpoint */
-- Stores the result of a step, unless the operation has a result of that name.
--   $1 operation, $2 token, $3 name, $4 result
UPDATE {records} r SET
    step_names = array_append(r.step_names, $3::text), step_results = array_append(r.step_results, $4::bytea)
WHERE {held} AND ($3::text = ANY (r.step_names)) IS NOT TRUE
