-- Stores a completed record under KEYS[1] for ARGV[2] milliseconds, if the token is ARGV[1] or the record is missing.
-- The record is ARGV[3] or, when it is too large to pass through Lua, has been put under KEYS[2] before.

local key, token, ttl, record, staged = KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[2]

local function store(reply)
  if staged then
    redis.call('RENAME', staged, key)
    redis.call('PEXPIRE', key, ttl)
  else
    put(key, record, 'PX', ttl)
  end
  return reply
end

local function refuse(reply)
  if staged then
    redis.call('UNLINK', staged)
  end
  return reply
end

local line = read(key)
if string.find(line, '^idempotency/1 running lease=%d+ token=' .. token .. ' ') then
  return store('ok') -- first, because to parse the head costs more than all the rest
end
if line == '' then
  return store('restored')
end
local state, _, _, owner = string.match(line, HEAD)
if not state then
  return refuse('invalid')
end
if state == 'done' and owner == token then
  return refuse('ok') -- a repetition
end
return refuse('lost')
