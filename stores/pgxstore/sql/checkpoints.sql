/* idempotency: checkpoints */
-- Returns the steps of an operation to its owner; whether its record is there; and whether the claim may hold it: it does,
-- or could make it again.
--   $1 digest, $2 token
SELECT r.step_names, r.step_results, coalesce(r.expires_at > {now}, false), coalesce({own}, true)
FROM (SELECT) AS question LEFT JOIN {records} r ON r.digest = $1::bytea{in_reach}{newest}
