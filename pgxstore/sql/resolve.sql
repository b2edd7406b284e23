/* idempotency: resolve */
-- Ends an abandoned operation: with an answer, or for another attempt. It does so if the record still is that of the attempt
-- which somebody has been shown. The transaction has the advisory lock of the key, as for forget.sql. The token takes the
-- claim from its owner. Without an answer, the note becomes the last step, in the place of an earlier note.
--   $1 digest, $2 when it was created, $3 attempt, $4 token, $5 time to live in microseconds, $6 note among the steps
--   $7 status, $8 header, $9 trailer, $10 body, $11 note; null without an answer
UPDATE {records} r SET
    token = $4::uuid, lease_until = NULL,
    expires_at = {after $5}, expires_minute = date_bin('1 minute', {after $5}, 'epoch'),
    completed_at = CASE WHEN $7::integer IS NOT NULL THEN {now} END,
    status = $7::integer, header = $8::text, trailer = $9::text, body = $10::bytea, note = $11::text,
    (step_names, step_results) = (
        SELECT array_agg(name), array_agg(result)
        FROM (
            SELECT name, result FROM {steps} WHERE name IS DISTINCT FROM {resolution_note}
            UNION ALL SELECT {resolution_note}, $6::bytea
        ) noted
        WHERE $7::integer IS NULL)
WHERE r.digest = $1::bytea{in_reach} AND r.expires_at > {now}
    AND r.created_at = $2::timestamptz AND r.attempt = $3::integer AND {state} = 'abandoned' AND {readable}
