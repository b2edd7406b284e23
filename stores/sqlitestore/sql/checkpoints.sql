-- The checkpoints of an attempt that holds its record.
--
--   ?1 operation, ?2 token, ?3 now
SELECT steps FROM main.idempotency_records
WHERE operation = ?1 AND token = ?2 AND lease IS NOT NULL AND response IS NULL AND expires > ?3
