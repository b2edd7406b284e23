/* idempotency: place step */
-- Returns the place of the record of a claim, for a serializable transaction. If the transaction searched the index,
-- it would conflict with all transactions that insert into the same page of the index.
--   $1 operation, $2 token
SELECT r.ctid::text FROM {records} r WHERE {held}
