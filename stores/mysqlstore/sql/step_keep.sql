-- Stores the result of a step in its transaction, if as many bytes of checkpoints are stored as the attempt knows of, and renews
-- the lease.
UPDATE {records} FORCE INDEX (PRIMARY) SET
    steps = CONCAT(COALESCE(steps, x''), {checkpoint}), expires = GREATEST(expires, {now} + {lease}), lease = {now} + {lease}
WHERE operation = {operation} AND token = {token} AND lease IS NOT NULL AND response IS NULL AND expires > {now}
    AND COALESCE(LENGTH(steps), 0) = {before}
