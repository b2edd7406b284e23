-- Makes a record, or replaces the one of the key. It may keep the checkpoints of that, and how it was resolved. The
-- transaction has looked at it before.
--
--   ?1 operation, ?2 user, ?3 endpoint, ?4 key, ?5 attempt, ?6 fingerprint, ?7 token, ?8 created, ?9 lease, ?10 expires,
--   ?11 response, ?12 whether to keep checkpoints, ?13 those to have otherwise, ?14 whether to keep the resolution
REPLACE INTO main.idempotency_records
    (operation, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response, steps, resolved)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11,
    CASE WHEN ?12 THEN (SELECT steps FROM main.idempotency_records WHERE operation = ?1) ELSE ?13 END,
    (SELECT resolved FROM main.idempotency_records WHERE operation = ?1 AND ?14))
