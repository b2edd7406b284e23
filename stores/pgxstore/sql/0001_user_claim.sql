-- Claims a key as {claim_function} does, unless the key needs a new record and the user has as many records as user_bound says.
-- Then it returns -1. The lock lasts until the end of the transaction, and its number has two parts, as no other lock of a
-- store has. The statement that counts sees what was committed before it began, so it begins after the lock is granted.
DO $index$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = {records_text}::regclass AND c.relname = {user_index_text}) THEN
        CREATE INDEX {user_index} ON {records} (user_id, expires_minute ASC);
    END IF;
END $index$;

CREATE OR REPLACE FUNCTION {user_claim_function}(uuid, bytea, integer, text, text, text, uuid, bigint, bigint,
    timestamptz, seen_token uuid, seen_status integer, seen_expires_at timestamptz, seen_fingerprint bytea,
    seen_lease_until timestamptz, seen_completed_at timestamptz, seen_attempt integer, seen_user_id text,
    seen_endpoint text, seen_key text, user_bound integer) RETURNS integer
LANGUAGE plpgsql AS $claim$
BEGIN
    IF seen_token IS NULL OR seen_expires_at <= {now} THEN
        PERFORM pg_advisory_xact_lock(hashtext({records_text}), hashtext($4));
        IF (SELECT count(*) FROM (SELECT FROM {records} r WHERE r.user_id = $4 AND r.expires_at > {now}
            AND r.expires_minute >= date_bin('1 minute', {now}, 'epoch') LIMIT user_bound) AS counted) >= user_bound THEN
            -- Another session may have inserted the record of the key in the meantime.
            RETURN CASE WHEN EXISTS (SELECT FROM {records} r WHERE r.operation = $1{in_reach} AND r.expires_at > {now}) THEN 0 ELSE -1 END;
        END IF;
    END IF;
    RETURN {claim_function}($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, seen_token, seen_status, seen_expires_at, seen_fingerprint,
        seen_lease_until, seen_completed_at, seen_attempt, seen_user_id, seen_endpoint, seen_key);
END $claim$;
