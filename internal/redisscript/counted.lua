-- This part precedes claim.lua if the records of a user are counted. It claims a key without a record, unless the user has
-- ARGV[4] records or more: then the reply is "quota". The sorted set KEYS[3] is the index of the user (see index.lua).

local index, bound = KEYS[3], tonumber(ARGV[4])
local prefix, operation = string.sub(KEYS[1], 1, -39), string.sub(KEYS[1], -37, -2)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local batch = 16 -- how many records a sweep looks at

local function is_full()
  return redis.call('ZCARD', index) >= bound
end

-- expiry_of returns when the record of operation expires, or nil if the record is gone.
local function expiry_of(operation)
  local left = redis.call('PTTL', prefix .. '{' .. operation .. '}')
  if left == -1 then -- somebody has removed the expiry
    left = ARGV[2]
  end
  return tonumber(left) > 0 and now + left or nil
end

-- sweep_expired drops operations from the index whose time has come and whose records are gone, and returns how many
-- operations it has looked at. Each of the others gets the time at which its record expires by now, so no operation is
-- looked at twice for the same expiry.
local function sweep_expired()
  local operations = redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, batch)
  for _, operation in ipairs(operations) do
    local expiry = expiry_of(operation)
    if expiry then
      redis.call('ZADD', index, expiry, operation)
    else
      redis.call('ZREM', index, operation)
    end
  end
  return #operations
end

-- sweep_sample drops some operations whose records are gone before their time. A random sample finds each of them in the
-- end, and bounds what a refusal costs.
local function sweep_sample()
  for _, operation in ipairs(redis.call('ZRANDMEMBER', index, batch)) do
    if not expiry_of(operation) then
      redis.call('ZREM', index, operation)
    end
  end
end

if redis.call('EXISTS', KEYS[1]) == 0 then
  if is_full() then
    redis.call('ZREM', index, operation) -- a record of this key is gone
    while is_full() and sweep_expired() > 0 do end
    if is_full() then
      sweep_sample()
    end
    if is_full() then
      return 'quota'
    end
  end
  local ttl = tonumber(ARGV[2])
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  redis.call('ZADD', index, now + ttl, operation)
  redis.call('PEXPIRE', index, math.max(redis.call('PTTL', index), 2 * ttl))
  sweep_expired()
  return ARGV[1]
end
