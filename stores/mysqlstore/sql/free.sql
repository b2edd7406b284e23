-- Frees the key of an attempt that holds its record. What is left keeps a request for the claim that arrives late from claiming
-- the key: it would insert a row.
--
--   how long that is kept, operation, token
UPDATE {records} FORCE INDEX (PRIMARY) SET lease = NULL, attempt = 0, steps = NULL, expires = {now} + ?
WHERE operation = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
