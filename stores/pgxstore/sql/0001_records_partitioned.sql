-- Records of idempotency keys, one row for each operation, divided by the day on which they expire (UTC).
--
-- There is no unique index: it could not span the partitions unless it had their border in it, and then would not keep
-- a key unique. Claims of one key take turns by an advisory lock instead, and look at all partitions.
CREATE TABLE IF NOT EXISTS {records} (
    operation    uuid        NOT NULL, -- the ID, which follows from user, endpoint and key
    user_id      text        NOT NULL, -- in ASCII, or a SHA-256 digest in hexadecimal, as are endpoint and key
    endpoint     text        NOT NULL,
    key          text        NOT NULL,
    attempt      integer     NOT NULL,
    fingerprint  bytea       NOT NULL, -- of the request
    token        uuid        NOT NULL, -- of the claim, that is of the last attempt
    created_at   timestamptz NOT NULL, -- when the first attempt began
    lease_until  timestamptz,          -- null: nobody is running it
    expires_at   timestamptz NOT NULL,
    expires_minute timestamptz NOT NULL, -- as in a table without partitions; nothing needs it here
    completed_at timestamptz,
    status       integer,              -- null: not completed
    header       text,                 -- a line for each value: "Name: value"
    trailer      text,
    body         bytea,                -- null: not kept
    note         text,                 -- for operators; before the completion: why the last attempt ended
    replays      bigint      NOT NULL DEFAULT 0,
    step_names   text[],               -- steps that are done, until the operation is completed; null: none
    step_results bytea[],              -- in the order of step_names
    resolved     bytea                 -- who has resolved the operation, and how; null: nobody
) PARTITION BY RANGE (expires_at);

COMMENT ON TABLE {records} IS 'idempotency records, version 1';
