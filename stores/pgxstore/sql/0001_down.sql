-- Deletes the table with all its records, and the function that claims beside it. The schema stays.
DROP TABLE IF EXISTS {records};
DROP FUNCTION IF EXISTS {claim_function};
{drop_user_claim}