/* idempotency: delete expired */
-- Deletes the expired records among those at $1, except for records that another session has locked. A place may hold
-- a different record by now, which is deleted only if it has expired, too.
DELETE FROM {records} WHERE {place} = ANY (ARRAY(
    SELECT {place} FROM {records} WHERE {place} = ANY ($1::{places}) AND expires_at <= {now} FOR UPDATE SKIP LOCKED
)) AND expires_at <= {now}
