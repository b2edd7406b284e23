/* idempotency: resolve */
-- Ends an abandoned operation, with an answer or for another attempt, unless the record has changed since it was
-- shown to an operator. The new token takes the claim from its owner. Without an answer, the record keeps its steps
-- except for $7.
--   $1 operation, $2 creation, $3 attempt, $4 new token, $5 time to live in microseconds, $6 operator, reason and outcome
--   $7 names of steps to remove
--   $8 status, $9 header, $10 trailer, $11 body, $12 note; null without an answer
UPDATE {records} r SET
    token = $4::uuid, lease_until = NULL,
    expires_at = {after $5}, expires_minute = date_bin('1 minute', {after $5}, 'epoch'),
    completed_at = CASE WHEN $8::integer IS NOT NULL THEN {now} END,
    status = $8::integer, header = $9::text, trailer = $10::text, body = $11::bytea, note = $12::text,
    resolved = $6::bytea,
    (step_names, step_results) = (
        SELECT array_agg(name), array_agg(result) FROM {steps}
        WHERE $8::integer IS NULL AND (name = ANY ($7::text[])) IS NOT TRUE)
WHERE r.operation = $1::uuid{in_reach} AND r.expires_at > {now}
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND {state} = 'abandoned' AND {readable}
