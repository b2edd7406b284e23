-- Stores a completed record under KEYS[1] for ARGV[3] milliseconds, if the key has the running record ARGV[1] or no
-- record. ARGV[2] is the completed record. If ARGV[2] is empty, the record is too large to pass through Lua, and the
-- client has staged the record under KEYS[2]. A further key is the hash of the steps.

local key, running, done, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local staged = done == '' and KEYS[2]
local steps = KEYS[staged and 3 or 2]
local line = read(key)

if line == running or line == '' then
  if staged then
    redis.call('RENAME', staged, key)
    redis.call('PEXPIRE', key, ttl)
  else
    put(key, done, 'PX', ttl)
  end
  if steps then
    local origin = origin_of(running)
    local resolved = redis.call('HGET', steps, '') == origin and redis.call('HGET', steps, RESOLVED)
    if resolved then
      put_resolved(steps, origin, resolved, ttl)
    else
      redis.call('UNLINK', steps)
    end
  end
  return line == '' and 'restored' or 'OK'
end

if staged then
  redis.call('UNLINK', staged)
end
if string.sub(line, 1, #running - 3) == with_state('done', running) then
  local left = redis.call('PTTL', key)
  if left ~= 0 then -- in its last millisecond, PEXPIRE would delete the record or prolong its expiry
    redis.call('PEXPIRE', key, left < 0 and ttl or left) -- a write, so that a following WAIT waits for it
  end
  return 'OK' -- a repetition of the call that stored the record
end
return string.find(line, HEAD) and 'lost' or 'invalid'
