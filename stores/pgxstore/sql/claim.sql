/* idempotency: claim */
-- Returns the record that holds a key, in which case nothing is written, or else claims the key. The last column tells
-- which: it is null if the key is held; 0 if another session was faster, which has made, changed or deleted the record
-- since this statement took its snapshot, and the statement is to be run again; or else the number of the attempt, and
-- the record is the former one.
--
--   $1 digest, $2 fingerprint, $3 what may be claimed beyond what is absent or expired: 1 released, 2 also lapsed
--   $4 user, $5 endpoint, $6 key, $7 token, $8 lease, $9 time to live (both in microseconds)
--
-- What claims is a function because a statement that can write takes more than twice as long to begin as one that can
-- only read; and one that returns a value, not rows, because to begin a second source of rows takes half as long again.
-- For a record that is to be replayed it is not called.
SELECT {columns}, CASE WHEN r.status IS NULL OR r.expires_at <= {now} THEN {claim_function}($1::bytea, $2::bytea,
    $3::integer, $4::text, $5::text, $6::text, $7::uuid, $8::bigint, $9::bigint, {now}, r.token, r.status,
    r.expires_at, r.fingerprint, r.lease_until, r.completed_at, r.attempt::integer, r.user_id, r.endpoint, r.key) END
FROM (SELECT) AS question LEFT JOIN {records} r ON r.digest = $1::bytea{in_reach}{newest}
