-- Renews the lease of an attempt that holds its record.
--
--   how long the lease is, the same, operation, token
UPDATE {records} FORCE INDEX (PRIMARY) SET lease = {now} + ?, expires = GREATEST(expires, {now} + ?)
WHERE operation = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
