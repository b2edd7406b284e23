-- Replaces a record, unless it was changed since it was read. It may keep the checkpoints, and how the operation was
-- resolved. A token that is new changes the row in any case, so the count of the rows tells it.
--
--   user, endpoint, key, attempt, fingerprint, token, created, how long the lease is or null, how long the record is
--   kept, response, its size, whether to keep checkpoints, those to have otherwise, whether to keep the resolution; what was
--   read: digest, token, lease, expires, whether there is no response
UPDATE {records} FORCE INDEX (PRIMARY) SET
    user_id = UNHEX(?), endpoint = UNHEX(?), `key` = UNHEX(?), attempt = ?, fingerprint = UNHEX(?), token = UNHEX(?),
    created = ?, lease = {now} + ?, expires = {now} + ?, response = UNHEX(?), answer_size = ?,
    steps = IF(?, steps, UNHEX(?)), resolved = IF(?, resolved, NULL)
WHERE digest = UNHEX(?) AND token <=> UNHEX(?) AND lease <=> ? AND expires <=> ? AND (response IS NULL) = ?
