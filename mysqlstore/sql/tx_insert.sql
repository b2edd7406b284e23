-- Makes the record of a key that has none, if the session has the lock. The primary key decides where locks do not
-- reach.
INSERT INTO {records}
    (digest, user_id, endpoint, `key`, attempt, fingerprint, token, created, lease, expires, response, answer_size)
SELECT {digest}, {user}, {endpoint}, {key}, {attempt}, {fingerprint}, {token}, {created}, NULL, {now} + {ttl},
    {response}, {answer_size}
FROM DUAL WHERE {locked}
