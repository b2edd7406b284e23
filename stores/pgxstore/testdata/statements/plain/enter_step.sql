/* idempotency: enter step */
-- Returns the ID of the transaction, and whether the transaction locks the record of the claim. The transaction locks
-- the record at isolation levels at which it could not change a record that was renewed after its snapshot. If the
-- claim has lost the record, the statement fails by a division by zero.
--   $1 operation, $2 token, $3 idle timeout of the transaction in milliseconds
--   $4 for a serializable transaction: the place of the record, see place_step.sql
SELECT pg_current_xact_id()::text, current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted'),
    CASE WHEN current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
    THEN 1 / (SELECT count(*) FROM (SELECT FROM "idempotency_records" r WHERE r.operation = $1::uuid AND r.token = $2::uuid AND r.status IS NULL AND r.lease_until IS NOT NULL
    AND r.expires_at > statement_timestamp() FOR NO KEY UPDATE) AS held) END,
    CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
        NOT BETWEEN interval '1 ms' AND $3::bigint * interval '1 ms'
    THEN set_config('idle_in_transaction_session_timeout', ($3::bigint)::text, true) END
