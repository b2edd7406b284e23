-- The checkpoints of an attempt that holds its record.
--
--   operation, token
SELECT steps FROM {records}
WHERE operation = {bytes} AND token = {bytes} AND lease IS NOT NULL AND response IS NULL AND expires > {now} LIMIT 1
