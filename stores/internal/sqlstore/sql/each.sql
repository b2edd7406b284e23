-- All records, in no order, with the beginning of what was answered. Those that cannot be read are among them, in any
-- state.
SELECT operation, {size}, {user_id}, {endpoint}, {key}, attempt, fingerprint, token, created, lease, expires,
    SUBSTR(response, 1, 512)
FROM {table} {whole} WHERE {asked_for} AND ({state} {in_states} OR NOT COALESCE({readable}, FALSE))
