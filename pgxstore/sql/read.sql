/* idempotency: read */
-- Returns the record of a key. It must be a statement of its own, behind the one that locks, because a snapshot that is
-- older than the lock would miss the record of the session that had it before.
SELECT {columns} FROM {records} r WHERE r.digest = $1::bytea{in_reach}{newest}
