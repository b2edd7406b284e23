-- Deletes a record, unless it was changed since it was read.
--
--   what was read: operation, token, lease, expires, whether there is no response
DELETE r FROM {records} AS r FORCE INDEX (PRIMARY)
WHERE operation = {bytes} AND token <=> {bytes_or_null} AND lease <=> ? AND expires <=> ? AND (response IS NULL) = ?
