/* idempotency: begin step */
-- Follows the beginning of the transaction of a step. Returns the ID of the transaction.
--   $1 after how many milliseconds of silence the server ends the transaction
SELECT pg_current_xact_id()::text, CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
        NOT BETWEEN interval '1 ms' AND $1::bigint * interval '1 ms'
    THEN set_config('idle_in_transaction_session_timeout', ($1::bigint)::text, true) END
