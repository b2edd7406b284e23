-- Ends the lease of a record, unless it was changed since it was read. The new token keeps its owner from it.
--
--   token, how long the record is kept, response, its size, checkpoints, resolution; what was read: operation, token, lease,
--   expires, how many bytes of checkpoints
UPDATE {records} FORCE INDEX (PRIMARY) SET
    token = {bytes}, lease = NULL, expires = {now} + ?, response = {bytes_or_null}, answer_size = ?, steps = {bytes_or_null},
    resolved = {bytes_or_null}, ended = NULL
WHERE operation = {bytes} AND token <=> {bytes_or_null} AND lease <=> ? AND expires <=> ? AND response IS NULL
    AND COALESCE(LENGTH(steps), 0) = ?
