-- Stores a completed record under KEYS[1] for ARGV[2] milliseconds, if the token is ARGV[1] or the record is missing.
-- The record is ARGV[3] or, when it is too large to pass through Lua, has been put under KEYS[2] before.

local key, token, ttl, record, staged = KEYS[1], ARGV[1], ARGV[2], ARGV[3], KEYS[2]

local function store()
  if not staged then
    settle(key)
    redis.call('SET', key, record, 'PX', ttl)
    return
  end
  redis.call('RENAME', staged, key)
  redis.call('PEXPIRE', key, ttl)
end

local function refuse(reason)
  if staged then
    redis.call('UNLINK', staged)
  end
  return reason
end

local line, state, _, _, owner = read(key)
if line == '' then
  store()
  return 'restored'
end
if not state then
  return refuse('invalid')
end
if owner ~= token or state == 'released' then
  return refuse('lost')
end
if state == 'done' then
  return refuse('ok') -- a repetition
end
store()
return 'ok'
