-- The keys of some records that have expired, those first that expired first. It locks nothing.
--
--   how many at most
SELECT digest FROM {records} WHERE expires <= {now} ORDER BY expires LIMIT ?
