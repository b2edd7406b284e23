-- Stores the checkpoints of an attempt that holds its record, if there are as many bytes of them as it knows of.
--
--   ?1 operation, ?2 token, ?3 now, ?4 checkpoints, ?5 how many bytes of them are stored
UPDATE main.idempotency_records SET steps = ?4
WHERE operation = ?1 AND token = ?2 AND lease IS NOT NULL AND response IS NULL AND expires > ?3
    AND coalesce(length(steps), 0) = ?5
