-- Locks a record, unless another transaction has locked it.
--
--   operation
SELECT TRUE FROM {records} FORCE INDEX (PRIMARY) WHERE operation = {bytes} LIMIT 1 FOR UPDATE NOWAIT
