-- The checkpoints of an attempt that holds its record.
--
--   digest, token
SELECT steps FROM {records}
WHERE digest = UNHEX(?) AND token = UNHEX(?) AND lease IS NOT NULL AND response IS NULL AND expires > {now}
