-- Some records that have expired, those first that expired first, behind another one. It locks nothing.
--
--   of the other one: when it expired, the same, operation; how many at most
SELECT operation, expires FROM {records}
WHERE expires <= {now} AND expires >= ? AND (expires > ? OR operation > {bytes}) ORDER BY expires, operation LIMIT ?
