-- Whether a user has so many records that have not expired.
--
--   ?1 user, ?2 now, ?3 how many
SELECT count(*) >= ?3 FROM (SELECT 1 FROM main.idempotency_records WHERE user_id = ?1 AND expires > ?2 LIMIT ?3)
