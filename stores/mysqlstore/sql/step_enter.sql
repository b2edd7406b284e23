-- Renews the lease of an attempt that holds its record, which locks the record for the transaction of a step. LAST_INSERT_ID
-- returns with the reply when the lease lapses.
UPDATE {records} FORCE INDEX (PRIMARY) SET
    expires = GREATEST(expires, {now} + {lease}), lease = LAST_INSERT_ID({now} + {lease})
WHERE operation = {operation} AND token = {token} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
