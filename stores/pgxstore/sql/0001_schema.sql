-- CREATE SCHEMA IF NOT EXISTS needs the right to create schemas even if there is one, and fails if another session has
-- just made it.
DO $schema$
BEGIN
    IF to_regnamespace({schema_text}) IS NULL THEN
        CREATE SCHEMA {schema};
    END IF;
EXCEPTION
    WHEN duplicate_schema OR unique_violation THEN NULL; -- it is there now
END $schema$;
