-- Renews the lease of an attempt that holds its record.
--
--   ?1 operation, ?2 token, ?3 now, ?4 when the lease lapses
UPDATE main.idempotency_records SET lease = ?4, expires = max(expires, ?4)
WHERE operation = ?1 AND token = ?2 AND lease IS NOT NULL AND response IS NULL AND expires > ?3
