/* idempotency: enter step */
-- Returns the ID of the transaction, and whether the transaction locks the record of the claim. The transaction locks
-- the record at isolation levels at which it could not change a record that was renewed after its snapshot. If the
-- claim has lost the record, the statement fails by a division by zero.
--   $1 operation, $2 token, $3 idle timeout of the transaction in milliseconds
--   $4 for a serializable transaction: the place of the record, see place_step.sql
SELECT pg_current_xact_id()::text, current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted'),
    CASE WHEN current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
    THEN 1 / (SELECT count(*) FROM (SELECT FROM {records} r WHERE {held}{at $4} FOR NO KEY UPDATE) AS held) END,
    {idle_timeout $3}
