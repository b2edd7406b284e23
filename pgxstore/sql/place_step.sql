/* idempotency: place step */
-- Returns where the record of a claim is, for a serializable transaction. If that read the index, it would conflict with all that
-- insert into the same page of it.
--   $1 digest, $2 token
SELECT r.ctid::text FROM {records} r WHERE {held}
