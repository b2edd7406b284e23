/* idempotency: totals */
-- Counts the listed records by state. The state of unreadable records is null.
--   $1 states, or none for all; $2 user and the digest of the user, or none for all
SELECT counted.state, count(*), sum(counted.size)::bigint
FROM (SELECT CASE WHEN {readable} THEN {state} END AS state, {size} AS size FROM {records} r WHERE {asked_for}) counted
WHERE counted.state IS NULL OR cardinality($1::text[]) = 0 OR counted.state = ANY ($1::text[])
GROUP BY 1
