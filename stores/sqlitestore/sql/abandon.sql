-- Makes the lease of an attempt that holds its record lapse.
--
--   ?1 operation, ?2 token, ?3 now, ?4 the reason
UPDATE main.idempotency_records SET lease = min(lease, ?3), ended = ?4
WHERE operation = ?1 AND token = ?2 AND lease IS NOT NULL AND response IS NULL AND expires > ?3
