-- Makes a record, or replaces the one of the key. The transaction has looked at that before.
--
--   ?1 digest, ?2 user, ?3 endpoint, ?4 key, ?5 operation, ?6 attempt, ?7 fingerprint, ?8 token, ?9 created, ?10 lease,
--   ?11 expires, ?12 response
REPLACE INTO main.idempotency_records
    (digest, user_id, endpoint, key, operation, attempt, fingerprint, token, created, lease, expires, response)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
