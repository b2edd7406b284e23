/* idempotency: lock */
-- Begins the visit of a key by a transaction.
--   $1 number of the key, $2 after how long a silence the server ends the transaction, as the server writes it
--
-- To change a setting for a transaction costs the server as much as a small statement, mostly when it is changed back.
SELECT pg_try_advisory_xact_lock($1::bigint), now(),
    CASE WHEN current_setting('idle_in_transaction_session_timeout') <> $2::text
    THEN set_config('idle_in_transaction_session_timeout', $2::text, true) END
