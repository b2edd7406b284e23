-- Stores a completed record under KEYS[1] for ARGV[2] milliseconds, if the token is ARGV[1] or the record is missing.
-- The record is ARGV[3] or, when it is too large to pass through Lua, has been put under KEYS[2] before.

local key, token, ttl, record, staged = KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[2]

local line = read(key)
-- Not by HEAD: to parse it costs more than all the rest.
local claimed = string.find(line, '^idempotency/1 running lease=%d+ token=' .. token .. ' ')

if claimed or line == '' then
  if staged then
    redis.call('RENAME', staged, key)
    redis.call('PEXPIRE', key, ttl)
  else
    put(key, record, 'PX', ttl)
  end
  return claimed and 'ok' or 'restored'
end

if staged then
  redis.call('UNLINK', staged)
end
local state, _, _, owner = string.match(line, HEAD)
if not state then
  return 'invalid'
end
return state == 'done' and owner == token and 'ok' or 'lost' -- 'ok' to a repetition
