-- Lets another attempt have the key of an attempt that holds its record.
--
--   ?1 operation, ?2 token, ?3 now, ?4 when the record expires, ?5 the reason
UPDATE main.idempotency_records SET lease = NULL, expires = ?4, ended = ?5
WHERE operation = ?1 AND token = ?2 AND lease IS NOT NULL AND response IS NULL AND expires > ?3
