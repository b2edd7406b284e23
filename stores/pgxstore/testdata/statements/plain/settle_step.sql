/* idempotency: settle step */
-- Returns whether the claim holds the record, whether the step has a result, and whether the transaction of the step
-- has ended. A transaction that is still open may store the result later. If that transaction has locked the record,
-- this statement waits.
--   $1 operation, $2 token, $3 name, $4 ID of the transaction
SELECT r.token = $2::uuid AND r.status IS NULL, ($3::text = ANY (r.step_names)) IS TRUE,
    pg_visible_in_snapshot($4::text::xid8, pg_current_snapshot())
FROM "idempotency_records" r WHERE r.operation = $1::uuid FOR NO KEY UPDATE
