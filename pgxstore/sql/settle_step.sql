/* idempotency: settle step */
-- Returns whether the claim has its record, and whether the step has a result, when a transaction whose commit was not answered
-- has ended: the statement waits for the lock of that transaction.
--   $1 digest, $2 token, $3 name
SELECT r.token = $2::uuid AND r.status IS NULL, ($3::text = ANY (r.step_names)) IS TRUE
FROM {records} r WHERE r.digest = $1::bytea{in_reach}{is_newest} FOR NO KEY UPDATE
