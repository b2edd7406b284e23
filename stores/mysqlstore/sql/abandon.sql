-- Makes the lease of an attempt that holds its record lapse.
--
--   the reason or null, operation, token
UPDATE {records} FORCE INDEX (PRIMARY) SET lease = LEAST(lease, {now}), ended = {bytes_or_null}
WHERE operation = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
