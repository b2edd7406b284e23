/* idempotency: totals */
-- Counts the listed records by state. The state of unreadable records is null.
--   $1 states, or none for all; $2 user, $3 endpoint and $4 key, or null for all; $5 to $7 the digests of these names;
--   $8 earliest creation, or null; $9 first creation that is too late, or null
--
-- PostgreSQL expects few groups of conditions, but so many states that it would sort all records.
SELECT max(counted.state), count(*), sum(counted.size)::bigint
FROM (SELECT CASE WHEN {readable} THEN {state} END AS state, {size} AS size FROM {records} r WHERE {asked_for}) counted
WHERE counted.state IS NULL OR cardinality($1::text[]) = 0 OR counted.state = ANY ($1::text[])
GROUP BY counted.state = 'running', counted.state = 'abandoned', counted.state = 'released'
