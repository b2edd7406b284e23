-- Deletes a record. The transaction has looked at it before.
--
--   ?1 operation
DELETE FROM main.idempotency_records WHERE operation = ?1
