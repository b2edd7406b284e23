-- This part is common to the scripts that know the index of a user, for RedisOptions.MaxUserRecords.
--
-- The index is a sorted set of the user's operations. The score of an operation is the time, in milliseconds, at which its
-- record expires. Scripts that let a record expire earlier change the score. A completion, a renewal and a further attempt
-- let the record live longer and leave the score, because a claim looks at the record before it drops an operation from
-- the index. The claim thereby also finds records that are gone earlier, for example because somebody has deleted them.
--
-- The index expires two TTLs after the last new record of the user. Records that are kept for longer, by renewals or
-- further attempts, are not counted then.

-- note_expiry sets the score of the record under key, if the index has it. Operators need no right to the index, and the
-- index of a Cluster, where no records are counted, may be on another server. So errors are ignored.
local function note_expiry(key, line, ttl)
  local index = string.sub(key, 1, -39) .. 'user:' .. string.match(line, ' user=(%x+) ')
  if redis.pcall('EXISTS', index) == 1 then
    local time = redis.call('TIME')
    redis.pcall('ZADD', index, 'XX', time[1] * 1000 + math.floor(time[2] / 1000) + ttl, string.sub(key, -37, -2))
  end
end
