/* idempotency: enter step */
-- Returns the ID of the transaction, and whether it locks the record of the claim. It locks the record at every isolation level
-- at which the transaction could not change a record that was renewed since its snapshot. The statement fails by a division by zero if the claim
-- has lost the record.
--   $1 digest, $2 token, $3 after how many milliseconds of silence the server ends the transaction
--   and for a serializable transaction: $4 the place of the record, see place_step.sql
SELECT pg_current_xact_id()::text, current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted'),
    CASE WHEN current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
    THEN 1 / (SELECT count(*) FROM (SELECT FROM {records} r WHERE {held}{at $4} FOR NO KEY UPDATE) AS held) END,
    {idle_timeout $3}
