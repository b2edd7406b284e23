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
        statement_timestamp() AS now, r.completed_at, r.status, (octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint AS size, CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END AS state, r.note
    FROM "idempotency_records" r WHERE r.expires_at > statement_timestamp() AND NOT (r.attempt = 0 AND r.status IS NULL AND r.lease_until IS NULL) AND (cardinality($2::text[]) = 0 OR r.user_id = ANY ($2::text[])) AND (octet_length(r.fingerprint) = 32 AND r.attempt BETWEEN 1 AND 2147483646
        AND (r.status IS NULL) = (r.completed_at IS NULL)
        AND (r.status IS NULL OR r.status IN (0, 101) OR r.status BETWEEN 200 AND 999)
        AND (r.lease_until IS NULL OR isfinite(r.lease_until))) AND (cardinality($1::text[]) = 0 OR CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END = ANY ($1::text[]))
        AND ($5::timestamptz IS NULL OR (CASE WHEN $3::boolean THEN -(octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint ELSE 0 END, r.created_at, r.operation)
            > (CASE WHEN $3::boolean THEN -$7::bigint ELSE 0 END, $5::timestamptz, $6::uuid))
    ORDER BY CASE WHEN $3::boolean THEN (octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint END DESC, r.created_at, r.operation LIMIT $4::bigint
) l
ORDER BY CASE WHEN $3::boolean THEN l.size END DESC, l.created_at, l.operation
