-- Appends a checkpoint to those of an attempt that holds its record, if there are as many bytes of them as it knows of.
--
--   the checkpoint, operation, token, how many bytes are stored
UPDATE {records} FORCE INDEX (PRIMARY) SET steps = CONCAT(COALESCE(steps, x''), {bytes})
WHERE operation = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
    AND COALESCE(LENGTH(steps), 0) = ?
