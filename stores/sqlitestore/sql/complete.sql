-- Stores the response of an attempt that holds its record, and removes its checkpoints.
--
--   ?1 operation, ?2 token, ?3 now, ?4 when the record expires, ?5 response, ?6 how many bytes of checkpoints there must be
UPDATE main.idempotency_records SET lease = NULL, expires = ?4, response = ?5, steps = NULL
WHERE operation = ?1 AND token = ?2 AND lease IS NOT NULL AND response IS NULL AND expires > ?3
    AND coalesce(length(CAST(steps AS BLOB)), 0) >= ?6
