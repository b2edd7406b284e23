-- Some records in an order, with the beginning of what was answered. The table is read for their IDs alone. What is
-- shown of them is found by these.
SELECT operation, {size}, {user_id}, {endpoint}, {key}, attempt, fingerprint, token, created, lease, expires,
    SUBSTR(response, 1, 512)
FROM (
    SELECT operation AS listed FROM {table} {whole}
    WHERE {asked_for} AND {state} {in_states} AND {behind} AND {readable} ORDER BY {order} LIMIT {limit}
) page JOIN {table} ON operation = listed ORDER BY {order} LIMIT {limit}
