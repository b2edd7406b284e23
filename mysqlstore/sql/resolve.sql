-- Ends the lease of a record, unless it was changed since it was read. The new token keeps its owner from it.
--
--   token, how long the record is kept, response, its size, checkpoints, resolution; what was read: digest, token, lease,
--   expires, how many bytes of checkpoints
UPDATE {records} FORCE INDEX (PRIMARY) SET
    token = UNHEX(?), lease = NULL, expires = {now} + ?, response = UNHEX(?), answer_size = ?, steps = UNHEX(?),
    resolved = UNHEX(?)
WHERE digest = UNHEX(?) AND token <=> UNHEX(?) AND lease <=> ? AND expires <=> ? AND response IS NULL
    AND COALESCE(LENGTH(steps), 0) = ?
