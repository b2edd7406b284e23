/* idempotency: read */
-- Returns the record of a key. It must be a statement of its own, behind the one that locks, because a snapshot that is
-- older than the lock would miss the record of the session that had it before.
SELECT r.user_id, r.endpoint, r.key, r.attempt, r.fingerprint, r.token, r.created_at,
    r.lease_until, r.expires_at, statement_timestamp() AS now, r.completed_at IS NOT NULL, r.status, r.header, r.trailer, r.body, r.note,
    r.status IS NOT NULL AND current_setting('synchronous_standby_names') <> ''
        AND NOT pg_is_in_recovery() AS awaited FROM "idempotency_records" r WHERE r.digest = $1::bytea
