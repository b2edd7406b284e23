/* idempotency: inspect */
-- Returns the record of a key for an operator.
--   $1 operation
SELECT r.user_id, r.endpoint, r.key, r.attempt, r.fingerprint, r.token, r.created_at,
    r.lease_until, r.expires_at, statement_timestamp() AS now, r.completed_at IS NOT NULL, r.status, r.header, r.trailer, r.body, r.note,
    r.status IS NOT NULL AND current_setting('synchronous_standby_names') <> ''
        AND NOT pg_is_in_recovery() AS awaited, r.completed_at, (octet_length(r.user_id) + octet_length(r.endpoint) + octet_length(r.key) + coalesce(octet_length(r.header), 0)
        + coalesce(octet_length(r.trailer), 0) + coalesce(octet_length(r.body), 0) + coalesce(octet_length(r.note), 0)
        + coalesce(octet_length(r.resolved), 0)
        + coalesce(CASE WHEN r.step_names IS NOT NULL THEN (SELECT sum(octet_length(name) + octet_length(result))
            FROM unnest(r.step_names, r.step_results) AS step (name, result)) END, 0))::bigint, CASE WHEN r.status IS NOT NULL THEN 'completed' WHEN r.lease_until IS NULL THEN 'released'
        WHEN r.lease_until > statement_timestamp() THEN 'running' ELSE 'abandoned' END,
    ARRAY(SELECT coalesce(name, '') FROM unnest(r.step_names, r.step_results) AS step (name, result) ORDER BY name COLLATE "C"),
    ARRAY(SELECT coalesce(octet_length(result), 0) FROM unnest(r.step_names, r.step_results) AS step (name, result) ORDER BY name COLLATE "C"), r.resolved
FROM "idempotency_records" r WHERE r.operation = $1::uuid AND expires_at >= date_bin('24 hours', statement_timestamp() - interval '1 hour', 'epoch')
        AND expires_at < date_bin('24 hours', statement_timestamp() + interval '1 hour', 'epoch') + interval '48 hours'
ORDER BY r.expires_at DESC LIMIT 1
