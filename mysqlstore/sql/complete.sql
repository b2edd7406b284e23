-- Stores the response of an attempt that holds its record.
--
--   how long the record is kept, response, digest, token
UPDATE {records} FORCE INDEX (PRIMARY) SET lease = NULL, expires = {now} + ?, response = UNHEX(?)
WHERE digest = UNHEX(?) AND token = UNHEX(?) AND lease IS NOT NULL AND response IS NULL AND expires > {now}
