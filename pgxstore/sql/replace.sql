/* idempotency: replace */
-- Makes room for the record of another attempt, or of another operation after the first one has expired.
--   $1 digest, $2 token of the record as it was seen
DELETE FROM {records} WHERE digest = $1::bytea AND token = $2::uuid
