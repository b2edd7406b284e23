-- Some records that have expired, those first that expired first, behind another one. It locks nothing.
--
--   of the other one: when it expired, the same, digest; how many at most
SELECT digest, expires FROM {records}
WHERE expires <= {now} AND expires >= ? AND (expires > ? OR digest > {bytes}) ORDER BY expires, digest LIMIT ?
