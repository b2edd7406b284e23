-- Lets another attempt have the key of an attempt that holds its record.
--
--   how long the record is kept, the reason or null, operation, token
UPDATE {records} FORCE INDEX (PRIMARY) SET lease = NULL, expires = {now} + ?, ended = {bytes_or_null}
WHERE operation = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
