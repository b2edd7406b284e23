/* idempotency: totals */
-- Counts the listed records by state. The state of unreadable records is null.
--   $1 states, or none for all; $2 user, $3 endpoint and $4 key, or null for all; $5 to $7 the digests of these names;
--   $8 earliest creation, or null; $9 first creation that is too late, or null
--
-- PostgreSQL expects few groups of conditions, but so many states that it would sort all records.
SELECT max(counted.state), count(*), sum(counted.size)::bigint
FROM (SELECT CASE WHEN (octet_length(r.fingerprint) = 32 AND r.attempt BETWEEN 1 AND 2147483646
        AND (r.status IS NULL) = (r.completed_at IS NULL)
        AND (r.status IS NULL OR r.status IN (0, 101) OR r.status BETWEEN 200 AND 999)
        AND (r.lease_until IS NULL OR isfinite(r.lease_until))) THEN CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END END AS state, (octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint AS size FROM "idempotency_records" r WHERE r.expires_at > statement_timestamp() AND NOT (r.attempt = 0 AND r.status IS NULL AND r.lease_until IS NULL)
    AND (($2::text IS NULL OR r.user_id = $2::text) AND ($3::text IS NULL OR r.endpoint = $3::text)
        AND ($4::text IS NULL OR r.key = $4::text)
        OR ($5::text IS NULL OR r.user_id = $5::text) AND ($6::text IS NULL OR r.endpoint = $6::text)
        AND ($7::text IS NULL OR r.key = $7::text) AND r.user_id || r.endpoint || r.key ~ '^[0-9a-f]{192}$')
    AND ($8::timestamptz IS NULL OR r.created_at >= $8::timestamptz)
    AND ($9::timestamptz IS NULL OR r.created_at < $9::timestamptz)) counted
WHERE counted.state IS NULL OR cardinality($1::text[]) = 0 OR counted.state = ANY ($1::text[])
GROUP BY counted.state = 'running', counted.state = 'abandoned', counted.state = 'released'
