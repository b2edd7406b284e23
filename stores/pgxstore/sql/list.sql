/* idempotency: list */
-- Returns records for an operator, the largest or the oldest first, without their answers.
--   $1 states, or none for all; $2 user and the digest of the user, or none for all; $3 whether the largest come first
--   $4 limit; $5 creation, $6 operation and $7 size of the last record on the page before, or null for the first page
--
-- The row itself has the size of a value, even of a value that is stored out of line, so the sum of sizes fetches no
-- answer.
SELECT l.operation, l.user_id, l.endpoint, l.key, l.attempt, l.created_at, l.lease_until, l.expires_at,
    l.now, l.completed_at, l.status, l.size, l.state, l.note
FROM (
    SELECT r.operation, r.user_id, r.endpoint, r.key, r.attempt, r.created_at, r.lease_until, r.expires_at,
        {now} AS now, r.completed_at, r.status, {size} AS size, {state} AS state, r.note
    FROM {records} r WHERE {asked_for} AND {readable} AND (cardinality($1::text[]) = 0 OR {state} = ANY ($1::text[]))
        AND ($5::timestamptz IS NULL OR (CASE WHEN $3::boolean THEN -{size} ELSE 0 END, r.created_at, r.operation)
            > (CASE WHEN $3::boolean THEN -$7::bigint ELSE 0 END, $5::timestamptz, $6::uuid))
    ORDER BY CASE WHEN $3::boolean THEN {size} END DESC, r.created_at, r.operation LIMIT $4::bigint
) l
ORDER BY CASE WHEN $3::boolean THEN l.size END DESC, l.created_at, l.operation
