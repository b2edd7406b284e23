/* idempotency: begin step */
-- Follows the beginning of the transaction of a step. Returns the ID of the transaction.
--   $1 after how many milliseconds of silence the server ends the transaction
SELECT pg_current_xact_id()::text, {idle_timeout $1}
