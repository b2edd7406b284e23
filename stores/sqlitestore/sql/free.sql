-- Frees the key of an attempt that holds its record. What is left has no attempt, and anybody may replace it.
--
--   ?1 operation, ?2 token, ?3 now, ?4 when the record expires
UPDATE main.idempotency_records SET lease = NULL, attempt = 0, steps = NULL, expires = ?4
WHERE operation = ?1 AND token = ?2 AND lease IS NOT NULL AND response IS NULL AND expires > ?3
