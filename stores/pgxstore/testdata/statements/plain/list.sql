/* idempotency: list */
-- Returns a page of the records that an operator asks for, without their answers.
--   $1 to $9 as in totals.sql; $10 order; $11 limit; $12 creation, $13 operation and $14 size of the last record on the
--   page before, or null for the first page
--
-- The row itself has the size of a value, even of a value that is stored out of line, so the sum of sizes fetches no
-- answer.
SELECT r.operation, r.user_id, r.endpoint, r.key, r.attempt, r.created_at, r.lease_until, r.expires_at,
    statement_timestamp() AS now, r.completed_at, r.status, (octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint AS size, CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END AS state, r.note
FROM "idempotency_records" r WHERE r.expires_at > statement_timestamp() AND NOT (r.attempt = 0 AND r.status IS NULL AND r.lease_until IS NULL)
    AND (($2::text IS NULL OR r.user_id = $2::text) AND ($3::text IS NULL OR r.endpoint = $3::text)
        AND ($4::text IS NULL OR r.key = $4::text)
        OR ($5::text IS NULL OR r.user_id = $5::text) AND ($6::text IS NULL OR r.endpoint = $6::text)
        AND ($7::text IS NULL OR r.key = $7::text) AND r.user_id || r.endpoint || r.key ~ '^[0-9a-f]{192}$')
    AND ($8::timestamptz IS NULL OR r.created_at >= $8::timestamptz)
    AND ($9::timestamptz IS NULL OR r.created_at < $9::timestamptz) AND (octet_length(r.fingerprint) = 32 AND r.attempt BETWEEN 1 AND 2147483646
        AND (r.status IS NULL) = (r.completed_at IS NULL)
        AND (r.status IS NULL OR r.status IN (0, 101) OR r.status BETWEEN 200 AND 999)
        AND (r.lease_until IS NULL OR isfinite(r.lease_until))) AND (cardinality($1::text[]) = 0 OR CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END = ANY ($1::text[]))
    AND ($12::timestamptz IS NULL OR CASE $10::text
        WHEN 'largest' THEN (-(octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint, r.created_at, r.operation) > (-$14::bigint, $12::timestamptz, $13::uuid)
        WHEN 'oldest' THEN (r.created_at, r.operation) > ($12::timestamptz, $13::uuid)
        ELSE (r.created_at, r.operation) < ($12::timestamptz, $13::uuid) END)
ORDER BY CASE WHEN $10::text = 'largest' THEN (octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint END DESC, CASE WHEN $10::text = 'newest' THEN r.created_at END DESC,
    CASE WHEN $10::text = 'newest' THEN r.operation END DESC, r.created_at, r.operation LIMIT $11::bigint
