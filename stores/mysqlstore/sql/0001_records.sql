-- The records. Times are in microseconds since 1970, by the clock of the server.
CREATE TABLE IF NOT EXISTS {records} (
    operation   BINARY(16) NOT NULL COMMENT 'the ID, which follows from user_id, endpoint and key',
    user_id     TEXT       NOT NULL,
    endpoint    TEXT       NOT NULL,
    `key`       TEXT       NOT NULL,
    attempt     INT        NOT NULL,
    fingerprint BINARY(32) NOT NULL,
    token       BINARY(16) NOT NULL COMMENT 'of the attempt that claimed the key last',
    created     BIGINT     NOT NULL,
    lease       BIGINT              COMMENT 'when it lapses; null: nobody is running the operation',
    expires     BIGINT     NOT NULL,
    response    LONGBLOB            COMMENT 'null: not completed',
    answer_size INT                 COMMENT 'bytes of the response, which need not be read for it; null: not completed',
    steps       MEDIUMBLOB          COMMENT 'the checkpoints, one behind the other; null: none',
    resolved    BLOB                COMMENT 'who has resolved the operation, and how; null: nobody',
    ended       VARBINARY(32)       COMMENT 'why the last attempt ended without an answer; null: it did not say',
    PRIMARY KEY (operation),
    KEY expires (expires)
) ENGINE = InnoDB DEFAULT CHARACTER SET = utf8mb4 COLLATE = utf8mb4_bin COMMENT = 'idempotency records, version 1'
