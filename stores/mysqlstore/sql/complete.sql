-- Stores the response of an attempt that holds its record, and removes its checkpoints.
--
--   how long the record is kept, response, its size, operation, token, how many bytes of checkpoints there must be
UPDATE {records} FORCE INDEX (PRIMARY) SET
    lease = NULL, expires = {now} + ?, response = {bytes}, answer_size = ?, steps = NULL
WHERE operation = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
    AND COALESCE(LENGTH(steps), 0) >= ?
