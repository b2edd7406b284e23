-- Records of idempotency keys, one row for each operation.
--
-- What is running, abandoned, released or completed follows from two columns: status is null until the operation is
-- completed, and lease_until is null when nobody is running it.
--
-- Completion must stay a heap-only update: it touches no indexed column, save once in a while the minute in which the
-- record expires, and finds room in the page.
--
-- A plan that is made while the table has a few pages reads all of it, and a session keeps that plan until the table is
-- vacuumed or analysed again. PostgreSQL does not make such a plan for a table that it has not vacuumed or analysed
-- yet. So autovacuum begins when the table has a few thousand records, and a vacuum leaves the file as long as it is.
CREATE TABLE IF NOT EXISTS {records} (
    operation      uuid        PRIMARY KEY, -- the ID, which follows from user, endpoint and key
    user_id        text        NOT NULL,    -- in ASCII, or a SHA-256 digest in hexadecimal, as are endpoint and key
    endpoint       text        NOT NULL,
    key            text        NOT NULL,
    attempt        integer     NOT NULL,
    fingerprint    bytea       NOT NULL,    -- of the request
    token          uuid        NOT NULL,    -- of the claim, that is of the last attempt
    created_at     timestamptz NOT NULL,    -- when the first attempt began
    lease_until    timestamptz,
    expires_at     timestamptz NOT NULL,
    expires_minute timestamptz NOT NULL,    -- the same without seconds: what is indexed must seldom change
    completed_at   timestamptz,
    status         integer,
    header         text,                    -- a line for each value: "Name: value"
    trailer        text,
    body           bytea,                   -- null: not kept
    note           text,                    -- for operators; before the completion: why the last attempt ended
    replays        bigint      NOT NULL DEFAULT 0,
    step_names     text[],                  -- steps that are done, until the operation is completed; null: none
    step_results   bytea[],                 -- in the order of step_names
    resolved       bytea                    -- who has resolved the operation, and how; null: nobody
) WITH ({storage});

-- IF NOT EXISTS would be content with whatever else has the name.
DO $index$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = {records_text}::regclass AND c.relname = {expiry_index_text}) THEN
        CREATE INDEX {expiry_index} ON {records} (expires_minute ASC); -- which YugabyteDB must be told
    END IF;
END $index$;

COMMENT ON TABLE {records} IS 'idempotency records, version 1';
