-- Makes a record, or replaces the one of the key. The transaction has looked at that before.
--
--   ?1 digest, ?2 user, ?3 endpoint, ?4 key, ?5 attempt, ?6 fingerprint, ?7 token, ?8 created, ?9 lease, ?10 expires,
--   ?11 response
REPLACE INTO main.idempotency_records
    (digest, user_id, endpoint, key, attempt, fingerprint, token, created, lease, expires, response)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
