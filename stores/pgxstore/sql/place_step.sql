/* idempotency: place step */
-- Returns where the record of a claim is, for a serializable transaction. If that transaction read the index, it would conflict with
-- all transactions that insert into the same page.
--   $1 digest, $2 token
SELECT r.ctid::text FROM {records} r WHERE {held}
