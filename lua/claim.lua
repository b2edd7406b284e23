-- Claims KEYS[1], or leaves it to who holds it. ARGV[1] is "token fingerprint operation lease ttl takeover". Returns the
-- time and, behind a newline, the record as it is then; without its response if that is large.

local INLINE = 8192 -- copying values out of Lua costs the server about a microsecond for each kilobyte

local key = KEYS[1]
local token, fingerprint, operation, lease, ttl, takeover =
  string.match(ARGV[1], '^(%x+) (%x+) ([%x-]+) (%d+) (%d+) ([01])$')
local time = now()

local claimed = head('running', time + lease, identity(token, 1, operation, fingerprint, time))
if redis.call('SET', key, claimed, 'NX', 'PX', ttl) then
  return string.format('%.0f\n%s', time, claimed)
end

local line, state, ends, _, owner, attempt, first, content, created = read(key)
local free = state == 'released' or (state == 'running' and takeover == '1' and tonumber(ends) <= time)
if free and content == fingerprint and owner ~= token then
  claimed = head('running', time + lease, identity(token, attempt + 1, first, content, created))
  redis.call('SET', key, claimed, 'PX', ttl)
  return string.format('%.0f\n%s', time, claimed)
end
local record = line
if state == 'done' and redis.call('STRLEN', key) <= INLINE then
  record = redis.call('GET', key)
elseif state then
  record = string.match(line, '^[^\n]*\n')
end
return string.format('%.0f\n', time) .. record
