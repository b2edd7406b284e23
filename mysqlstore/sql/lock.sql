-- Locks a record, unless another transaction has locked it.
--
--   digest
SELECT TRUE FROM {records} FORCE INDEX (PRIMARY) WHERE digest = UNHEX(?) FOR UPDATE NOWAIT
