/* idempotency: claim */
-- Returns the record that holds a key, in which case nothing is written, or else claims it.
--
--   $1 digest, $2 fingerprint, $3 what may be claimed beyond what is absent or expired: 1 released, 2 also lapsed
--   $4 user, $5 endpoint, $6 key, $7 token, $8 lease, $9 time to live (both in microseconds)
--
-- What claims is a function because a statement that can write takes more than twice as long to begin as one that can
-- only read, and the server does not begin the function if the first part has a row. There is no row if another session
-- was faster: its record is newer than the snapshot of this statement, which is to be run again then.
SELECT {columns} FROM {records} r WHERE r.digest = $1::bytea AND NOT {claimable}
UNION ALL
SELECT * FROM {claim_function}($1, $2, $3, $4, $5, $6, $7, $8, $9)
LIMIT 1
