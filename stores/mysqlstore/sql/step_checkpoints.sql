-- The checkpoints of a record that the transaction of a step has locked.
SELECT steps FROM {records} FORCE INDEX (PRIMARY) WHERE operation = {operation} LIMIT 1
