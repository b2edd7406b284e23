-- The token of the record of a key. It waits for the transaction that has the row.
SELECT token FROM {records} WHERE digest = {digest} LOCK IN SHARE MODE
