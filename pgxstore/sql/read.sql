/* idempotency: read */
-- Returns the record of a key, and what a claim of it would find. It must be a statement of its own, behind the one
-- that locks, because a snapshot that is older than the lock would miss the record of the session that had it before.
--
--   $1 digest, $2 fingerprint, $3 what may be claimed beyond what is absent or expired: 1 released, 2 also lapsed
SELECT {columns}, {claimable}, r.expires_at <= {now} FROM {records} r WHERE r.digest = $1::bytea
