-- Deletes some of the records that have expired.
--
--   ?1 now, ?2 how many at most
DELETE FROM main.idempotency_records WHERE rowid IN (
    SELECT rowid FROM main.idempotency_records WHERE expires <= ?1 ORDER BY expires LIMIT ?2
)
