/* idempotency: lock */
-- Begins the visit of a key by a transaction.
--   $1 number of the key, $2 after how many milliseconds of silence the server ends the transaction
SELECT pg_try_advisory_xact_lock($1::bigint), {now}, now(),
    set_config('idle_in_transaction_session_timeout', $2::text, true)
