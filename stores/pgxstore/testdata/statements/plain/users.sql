/* idempotency: users */
-- Returns the users with the largest total size of records.
--   $1 limit
SELECT r.user_id, count(*), sum((octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint)::bigint FROM "idempotency_records" r WHERE r.expires_at > statement_timestamp() AND NOT (r.attempt = 0 AND r.status IS NULL AND r.lease_until IS NULL)
GROUP BY 1 ORDER BY 3 DESC, 1 LIMIT $1::bigint
