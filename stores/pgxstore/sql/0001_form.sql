-- Refuses a table of the other form, before anything is made that would work on it as if it were of this one.
DO $form$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass({records_text}) AND relkind <> '{kind}') THEN
        RAISE 'the table was made with another setting of PartitionDays, or is none: %', {records_text};
    END IF;
END $form$;
