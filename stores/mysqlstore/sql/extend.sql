-- Renews the lease of an attempt that holds its record.
--
--   how long the lease is, the same, digest, token
UPDATE {records} FORCE INDEX (PRIMARY) SET lease = {now} + ?, expires = GREATEST(expires, {now} + ?)
WHERE digest = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
