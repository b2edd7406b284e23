-- Replaces a record, unless it was changed since it was read. It may keep the checkpoints, and how the operation was
-- resolved. A token that is new changes the row in any case, so the count of the rows tells it.
--
--   user, endpoint, key, attempt, fingerprint, token, created, how long the lease is or null, how long the record is
--   kept, response, its size, whether to keep checkpoints, those to have otherwise, whether to keep the resolution; what was
--   read: operation, token, lease, expires, whether there is no response
UPDATE {records} FORCE INDEX (PRIMARY) SET
    user_id = {bytes}, endpoint = {bytes}, `key` = {bytes}, attempt = ?, fingerprint = {bytes}, token = {bytes},
    created = ?, lease = {now} + ?, expires = {now} + ?, response = {bytes_or_null}, answer_size = ?,
    steps = IF(?, steps, {bytes_or_null}), resolved = IF(?, resolved, NULL), ended = NULL
WHERE operation = {bytes} AND token <=> {bytes_or_null} AND lease <=> ? AND expires <=> ? AND (response IS NULL) = ?
