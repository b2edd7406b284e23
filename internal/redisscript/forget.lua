-- Removes the record KEYS[1], whose key is ARGV[1], if it is in the state ARGV[2], of the attempt ARGV[3], and was created
-- at ARGV[4]. One that is running stays.

local key, steps, own, asked, attempt, created = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local refused = verdict(key, read(key), own, asked, attempt, created)
if refused then
  return refused
end
if steps then
  redis.call('UNLINK', key, steps)
elseif asked == 'completed' then -- there are no steps; how it was resolved counts for nothing without the record
  redis.call('UNLINK', key)
else
  return redis.error_reply('TRYAGAIN the steps may be on another server')
end
return 'OK'
