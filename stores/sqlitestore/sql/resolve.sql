-- Ends the lease of a record. The new token keeps its owner from it. The transaction has looked at it before.
--
--   ?1 operation, ?2 token, ?3 when the record expires, ?4 response, ?5 checkpoints, ?6 resolution
UPDATE main.idempotency_records SET token = ?2, lease = NULL, expires = ?3, response = ?4, steps = ?5, resolved = ?6, ended = NULL
WHERE operation = ?1
