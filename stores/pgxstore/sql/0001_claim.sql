-- Claims a key for which no record was seen, or one that can be claimed. Returns the number of the attempt, which is 1
-- for every new record; null if what was seen holds the key; or 0 if another session was faster, also if it has deleted
-- what was seen. See claim.sql for the parameters, and for why this is a function. $10 is the time.
--
-- Its name tells whether the table is divided, for a store that was told otherwise to find none. Nor may that find one
-- which a former table has left.
DROP FUNCTION IF EXISTS {other_claim_function};

CREATE OR REPLACE FUNCTION {claim_function}(uuid, bytea, integer, text, text, text, uuid, bigint, bigint,
    timestamptz, seen_token uuid, seen_status integer, seen_expires_at timestamptz, seen_fingerprint bytea,
    seen_lease_until timestamptz, seen_completed_at timestamptz, seen_attempt integer, seen_user_id text,
    seen_endpoint text, seen_key text) RETURNS integer
LANGUAGE plpgsql AS $claim$
DECLARE
    claimed integer;
BEGIN
    IF seen_token IS NULL THEN
        INSERT INTO {records} ({claim_columns}) VALUES ({claim}) {on_conflict};
        GET DIAGNOSTICS claimed = ROW_COUNT; -- any expression would take longer
        RETURN claimed;
    END IF;
    IF NOT {seen_claimable} THEN
        RETURN NULL;
    END IF;
    UPDATE {records} r SET {claim_again}
    WHERE r.operation = $1 AND r.expires_at = seen_expires_at AND r.token = seen_token AND {claimable} RETURNING r.attempt INTO claimed;
    RETURN coalesce(claimed, 0);
END $claim$;
