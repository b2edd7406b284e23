-- Claims KEYS[1], or leaves it to who holds it. ARGV[1] is "token fingerprint operation lease ttl takeover". Returns the
-- time and, behind a newline, the record as it is then; without its response if that is large.

local INLINE = 8192 -- copying values out of Lua costs the server about a microsecond for each kilobyte

local key = KEYS[1]
local line, state, ends, _, owner, attempt, first, content, created = read(key)

if state == 'done' then -- first, because replays are to cost least
  if redis.call('STRLEN', key) <= INLINE then
    return '0\n' .. redis.call('GET', key)
  end
  return '0\n' .. string.match(line, '^[^\n]*\n')
end

local token, fingerprint, operation, lease, ttl, takeover =
  string.match(ARGV[1], '^(%x+) (%x+) ([%x-]+) (%d+) (%d+) ([01])$')
local time = now()

local function claim(attempt, operation, created, ...)
  local claimed = head('running', time + lease, identity(token, attempt, operation, fingerprint, created))
  if redis.call('SET', key, claimed, 'PX', ttl, ...) then
    line = claimed
  end
end

if line == '' then
  claim(1, operation, time, 'NX')
elseif content == fingerprint and owner ~= token then
  if state == 'released' or (state == 'running' and takeover == '1' and tonumber(ends) <= time) then
    settle(key)
    claim(attempt + 1, first, created)
  end
end
return string.format('%.0f\n', time) .. line
