-- Makes the record of a key that has none.
--
--   operation, user, endpoint, key, attempt, fingerprint, token, created, how long the lease is or null, how long the record
--   is kept, response, its size, checkpoints
INSERT INTO {records}
    (operation, user_id, endpoint, `key`, attempt, fingerprint, token, created, lease, expires, response, answer_size, steps)
VALUES ({bytes}, {bytes}, {bytes}, {bytes}, ?, {bytes}, {bytes}, ?, {now} + ?, {now} + ?, {bytes_or_null}, ?, {bytes_or_null})
