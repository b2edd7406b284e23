-- What people are told of a key: its checkpoints, how it was resolved, and the same as by "read".
--
--   ?1 operation
SELECT steps, resolved, ended, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response
FROM main.idempotency_records WHERE operation = ?1
