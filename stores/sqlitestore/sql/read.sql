-- The record of a key, whether or not it has expired.
--
--   ?1 operation
SELECT user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response
FROM main.idempotency_records WHERE operation = ?1
