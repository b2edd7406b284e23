-- Removes the record KEYS[1] if its operation is ARGV[1], its state ARGV[2], its attempt ARGV[3] and its time of creation
-- ARGV[4]. A running record stays.

local key, steps, own_operation, asked_state, attempt, created = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local line = read(key)
local refused = verdict(key, line, own_operation, asked_state, attempt, created)
if refused then
  return refused
end
if steps then
  redis.call('UNLINK', key, steps)
elseif asked_state == 'completed' then -- a completed record has no steps; without it, a resolution has no meaning
  redis.call('UNLINK', key)
else
  return redis.error_reply('TRYAGAIN the steps may be on another server')
end
note_expiry(key, line, 0)
return 'OK'
