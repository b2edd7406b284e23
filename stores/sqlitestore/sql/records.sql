-- The records. Times are in microseconds since 1970, by the clock of the machine.
CREATE TABLE IF NOT EXISTS idempotency_records ( /* idempotency records, version 1 */
    operation   BLOB    NOT NULL PRIMARY KEY, -- the ID, which follows from user_id, endpoint and key
    user_id     TEXT    NOT NULL,
    endpoint    TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    attempt     INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    token       BLOB    NOT NULL,             -- of the attempt that claimed the key last
    created     INTEGER NOT NULL,
    lease       INTEGER,                      -- when it lapses; null: nobody is running the operation
    expires     INTEGER NOT NULL,
    response    BLOB,                         -- null: not completed
    steps       BLOB,                         -- the checkpoints, one behind the other; null: none
    resolved    BLOB,                         -- who has resolved the operation, and how; null: nobody
    ended       TEXT                          -- why the last attempt ended without an answer; null: it did not say
) STRICT
