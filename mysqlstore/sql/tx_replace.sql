-- Replaces the record of a key, if the session has the lock, unless it was changed since it was read. A token that is
-- new changes the row in any case, so the count of the rows tells it.
UPDATE {records} SET
    user_id = {user}, endpoint = {endpoint}, `key` = {key}, attempt = {attempt}, fingerprint = {fingerprint},
    token = {token}, created = {created}, lease = NULL, expires = {now} + {ttl}, response = {response},
    answer_size = {answer_size}, steps = NULL, resolved = NULL
WHERE digest = {digest} AND token = {seen_token} AND lease <=> {seen_lease} AND expires = {seen_expires}
    AND (response IS NULL) = {seen_open} AND {locked}
