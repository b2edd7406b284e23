-- +goose Up
-- +goose StatementBegin
-- Refuses a table of the other form, before anything is made that would work on it as if it were of this one.
DO $form$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('"idempotency_records"') AND relkind <> 'p') THEN
        RAISE 'the table was made with another setting of PartitionDays, or is none: %', '"idempotency_records"';
    END IF;
END $form$;

-- Records of idempotency keys, one row for each operation, divided by the day on which they expire (UTC).
--
-- There is no unique index: it could not span the partitions unless it had their border in it, and then would not keep
-- a key unique. Claims of one key take turns by an advisory lock instead, and look at all partitions.
CREATE TABLE IF NOT EXISTS "idempotency_records" (
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

COMMENT ON TABLE "idempotency_records" IS 'idempotency records, version 1';

-- Claims a key for which no record was seen, or one that can be claimed. Returns the number of the attempt, which is 1
-- for every new record; null if what was seen holds the key; or 0 if another session was faster, also if it has deleted
-- what was seen. See claim.sql for the parameters, and for why this is a function. $10 is the time.
--
-- Its name tells whether the table is divided, for a store that was told otherwise to find none. Nor may that find one
-- which a former table has left.
DROP FUNCTION IF EXISTS "idempotency_records_claim";

CREATE OR REPLACE FUNCTION "idempotency_records_claim_day"(uuid, bytea, integer, text, text, text, uuid, bigint, bigint,
    timestamptz, seen_token uuid, seen_status integer, seen_expires_at timestamptz, seen_fingerprint bytea,
    seen_lease_until timestamptz, seen_completed_at timestamptz, seen_attempt integer, seen_user_id text,
    seen_endpoint text, seen_key text) RETURNS integer
LANGUAGE plpgsql AS $claim$
DECLARE
    claimed integer;
BEGIN
    IF seen_token IS NULL THEN
        INSERT INTO "idempotency_records" (operation, user_id, endpoint, key, attempt, fingerprint, token,
        created_at, lease_until, expires_at, expires_minute) VALUES ($1::uuid, $4::text, $5::text, $6::text, 1, $2::bytea,
        $7::uuid, $10, ($10 + $8::bigint * interval '1 microsecond'), ($10 + $9::bigint * interval '1 microsecond'), date_bin('1 minute', ($10 + $9::bigint * interval '1 microsecond'), 'epoch')) ;
        GET DIAGNOSTICS claimed = ROW_COUNT; -- any expression would take longer
        RETURN claimed;
    END IF;
    IF NOT (seen_expires_at <= $10 OR seen_token <> $7::uuid AND ((seen_attempt = 0 AND seen_status IS NULL AND seen_lease_until IS NULL) OR seen_status IS NULL AND seen_fingerprint = $2::bytea
        AND ($3::integer >= 1 AND seen_lease_until IS NULL OR $3::integer >= 2 AND seen_lease_until <= $10)
        AND seen_lease_until IS DISTINCT FROM '-infinity' AND seen_completed_at IS NULL
        AND seen_attempt BETWEEN 1 AND 2147483646 AND ((seen_user_id, seen_endpoint, seen_key) = ($4::text, $5::text, $6::text)
            OR (encode(sha256(convert_to(seen_user_id, 'UTF8')), 'hex'), encode(sha256(convert_to(seen_endpoint, 'UTF8')), 'hex'), encode(sha256(convert_to(seen_key, 'UTF8')), 'hex')) = ($4::text, $5::text, $6::text)
            OR (seen_user_id, seen_endpoint, seen_key) = (encode(sha256(convert_to($4::text, 'UTF8')), 'hex'), encode(sha256(convert_to($5::text, 'UTF8')), 'hex'), encode(sha256(convert_to($6::text, 'UTF8')), 'hex'))))) THEN
        RETURN NULL;
    END IF;
    UPDATE "idempotency_records" r SET 
            user_id = $4::text, endpoint = $5::text, key = $6::text,
            attempt = CASE WHEN r.expires_at <= $10 THEN 1 ELSE r.attempt + 1 END,
            created_at = CASE WHEN r.expires_at <= $10 OR r.attempt = 0 THEN $10 ELSE r.created_at END,
            replays = CASE WHEN r.expires_at <= $10 THEN 0 ELSE r.replays END,
            fingerprint = $2::bytea, token = $7::uuid, lease_until = ($10 + $8::bigint * interval '1 microsecond'),
            expires_at = ($10 + $9::bigint * interval '1 microsecond'), expires_minute = date_bin('1 minute', ($10 + $9::bigint * interval '1 microsecond'), 'epoch'),
            completed_at = NULL, status = NULL, header = NULL, trailer = NULL, body = NULL, note = NULL,
            step_names = CASE WHEN r.expires_at > $10 THEN r.step_names END,
            step_results = CASE WHEN r.expires_at > $10 THEN r.step_results END,
            resolved = CASE WHEN r.expires_at > $10 THEN r.resolved END
    WHERE r.operation = $1 AND r.expires_at = seen_expires_at AND r.token = seen_token AND (r.expires_at <= $10 OR r.token <> $7::uuid AND ((r.attempt = 0 AND r.status IS NULL AND r.lease_until IS NULL) OR r.status IS NULL AND r.fingerprint = $2::bytea
        AND ($3::integer >= 1 AND r.lease_until IS NULL OR $3::integer >= 2 AND r.lease_until <= $10)
        AND r.lease_until IS DISTINCT FROM '-infinity' AND r.completed_at IS NULL
        AND r.attempt BETWEEN 1 AND 2147483646 AND ((r.user_id, r.endpoint, r.key) = ($4::text, $5::text, $6::text)
            OR (encode(sha256(convert_to(r.user_id, 'UTF8')), 'hex'), encode(sha256(convert_to(r.endpoint, 'UTF8')), 'hex'), encode(sha256(convert_to(r.key, 'UTF8')), 'hex')) = ($4::text, $5::text, $6::text)
            OR (r.user_id, r.endpoint, r.key) = (encode(sha256(convert_to($4::text, 'UTF8')), 'hex'), encode(sha256(convert_to($5::text, 'UTF8')), 'hex'), encode(sha256(convert_to($6::text, 'UTF8')), 'hex'))))) RETURNING r.attempt INTO claimed;
    RETURN coalesce(claimed, 0);
END $claim$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- Deletes the table with all its records, and the function that claims beside it. The schema stays.
DROP TABLE IF EXISTS "idempotency_records";
DROP FUNCTION IF EXISTS "idempotency_records_claim_day";
-- +goose StatementEnd
