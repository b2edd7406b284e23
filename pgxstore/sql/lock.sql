/* idempotency: lock */
-- Begins the visit of a key by a transaction.
--   $1 number of the key, $2 after how many milliseconds of silence the server ends the transaction
--
-- To change a setting for a transaction costs the server as much as a small statement, mostly when it is changed back.
SELECT pg_try_advisory_xact_lock($1::bigint), now(),
    CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval <> $2::bigint * interval '1 ms'
    THEN set_config('idle_in_transaction_session_timeout', ($2::bigint)::text, true) END
