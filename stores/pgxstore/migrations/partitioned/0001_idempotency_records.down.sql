-- Deletes the table with all its records, and the function that claims beside it. The schema stays.
DROP TABLE IF EXISTS "idempotency_records";
DROP FUNCTION IF EXISTS "idempotency_records_claim_day";
