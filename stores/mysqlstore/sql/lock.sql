-- Locks a record, unless another transaction has locked it.
--
--   digest
SELECT TRUE FROM {records} FORCE INDEX (PRIMARY) WHERE digest = {bytes} LIMIT 1 FOR UPDATE NOWAIT
