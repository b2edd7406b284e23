-- What there is of the record of a key when no transaction has it locked.
SELECT token, COALESCE(lease, 0), steps FROM {records} FORCE INDEX (PRIMARY) WHERE operation = {operation} LIMIT 1 FOR UPDATE
