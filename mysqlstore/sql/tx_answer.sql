-- Stores the response over the marker of the attempt. The new token changes the row in any case, so that no row means
-- that the transaction of the marker is gone.
UPDATE {records} SET token = {token}, expires = {now} + {ttl}, response = {response}, answer_size = {answer_size}
WHERE digest = {digest} AND token = {marker}
