-- How many records there are in each state, and of how many bytes. The state is null of those that cannot be read.
SELECT state, COUNT(*), COALESCE(SUM(size), 0)
FROM (
    SELECT CASE WHEN {readable} THEN {state} END AS state, {size} AS size FROM {table} {whole} WHERE {asked_for} {apart}
) counted
WHERE state IS NULL OR state {in_states} GROUP BY state LIMIT 5
