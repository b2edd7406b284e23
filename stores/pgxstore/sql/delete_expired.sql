/* idempotency: delete expired */
-- Deletes the expired records among those at $1, but none that another session is working on. What is there may be
-- another record by now, which is as good if it has expired, too.
DELETE FROM {records} WHERE {place} = ANY (ARRAY(
    SELECT {place} FROM {records} WHERE {place} = ANY ($1::{places}) AND expires_at <= {now} FOR UPDATE SKIP LOCKED
)) AND expires_at <= {now}
