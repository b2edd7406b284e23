/* idempotency: list */
-- Returns a page of the records that an operator asks for, without their answers.
--   $1 to $9 as in totals.sql; $10 order; $11 limit; $12 creation, $13 operation and $14 size of the last record on the
--   page before, or null for the first page
--
-- The row itself has the size of a value, even of a value that is stored out of line, so the sum of sizes fetches no
-- answer.
SELECT r.operation, r.user_id, r.endpoint, r.key, r.attempt, r.created_at, r.lease_until, r.expires_at,
    {now} AS now, r.completed_at, r.status, {size} AS size, {state} AS state, r.note
FROM {records} r WHERE {asked_for} AND {readable} AND (cardinality($1::text[]) = 0 OR {state} = ANY ($1::text[]))
    AND ($12::timestamptz IS NULL OR CASE $10::text
        WHEN 'largest' THEN (-{size}, r.created_at, r.operation) > (-$14::bigint, $12::timestamptz, $13::uuid)
        WHEN 'oldest' THEN (r.created_at, r.operation) > ($12::timestamptz, $13::uuid)
        ELSE (r.created_at, r.operation) < ($12::timestamptz, $13::uuid) END)
ORDER BY CASE WHEN $10::text = 'largest' THEN {size} END DESC, CASE WHEN $10::text = 'newest' THEN r.created_at END DESC,
    CASE WHEN $10::text = 'newest' THEN r.operation END DESC, r.created_at, r.operation LIMIT $11::bigint
