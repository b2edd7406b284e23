-- Stores the response of an attempt that holds its record, and removes its checkpoints.
--
--   how long the record is kept, response, its size, digest, token
UPDATE {records} FORCE INDEX (PRIMARY) SET
    lease = NULL, expires = {now} + ?, response = UNHEX(?), answer_size = ?, steps = NULL
WHERE digest = UNHEX(?) AND token = UNHEX(?) AND lease IS NOT NULL AND response IS NULL AND expires > {now}
