-- Deletes a record. The transaction has looked at it before.
--
--   ?1 digest
DELETE FROM main.idempotency_records WHERE digest = ?1
