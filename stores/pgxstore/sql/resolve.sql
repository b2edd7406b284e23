/* idempotency: resolve */
-- Ends an abandoned operation: with an answer, or for another attempt. It does so if the record still is that of the attempt
-- which somebody has been shown. The token takes the claim from its owner. Without an answer, the steps stay, except some.
--   $1 digest, $2 when it was created, $3 attempt, $4 token, $5 time to live in microseconds, $6 who has resolved it, and how
--   $7 names of steps that do not stay
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
WHERE r.digest = $1::bytea{in_reach} AND r.expires_at > {now}
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND {state} = 'abandoned' AND {readable}
