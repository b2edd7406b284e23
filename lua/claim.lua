-- Claims KEYS[1] for ARGV[1] (token), or leaves it to who holds it. Returns the time and, behind a newline, the record
-- as it is then; without the response if that has more than ARGV[7] bytes, since large values are slow to pass
-- through Lua.

local key, token, fingerprint, operation = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local lease, ttl, takeover, inline = tonumber(ARGV[4]), ARGV[5], ARGV[6] == '1', tonumber(ARGV[7])
local time = now()

local claimed = head('running', time + lease, token, 1, operation, fingerprint, time)
if redis.call('SET', key, claimed, 'NX', 'PX', ttl) then
  return string.format('%.0f\n%s', time, claimed)
end

local line, state, ends, owner, attempt, first, content, created = read(key)
local free = state == 'released' or (state == 'running' and takeover and tonumber(ends) <= time)
if free and content == fingerprint and owner ~= token then
  claimed = head('running', time + lease, token, attempt + 1, first, content, created)
  redis.call('SET', key, claimed, 'PX', ttl)
  return string.format('%.0f\n%s', time, claimed)
end
local record = line
if state == 'done' and redis.call('STRLEN', key) <= inline then
  record = redis.call('GET', key)
elseif state then
  record = string.match(line, '^[^\n]*\n')
end
return string.format('%.0f\n', time) .. record
