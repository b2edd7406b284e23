-- Claims KEYS[1], or leaves it to who holds it. ARGV[1] is "lease ttl takeover identity", the last one that of a first
-- attempt, without the time at its end. Returns the record as it is then, with a number behind some: the time, behind
-- one that somebody else holds; behind one that was claimed again, for how many milliseconds it would still have been
-- kept. Of a completed record that is large it returns the head only.

local SMALL = 8192 -- copying values out of Lua costs the server about a microsecond for each kilobyte
local UUID = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x$'

local key = KEYS[1]
local record = redis.call('GETRANGE', key, 0, SMALL)

if string.sub(record, 1, 19) == 'idempotency/1 done ' then -- first, because replays are to cost least
  if #record > SMALL then
    return string.sub(record, 1, string.find(record, '\n', 1, true))
  end
  return record
end

local lease, ttl, takeover, identity = string.match(ARGV[1], '^(%d+) (%d+) ([01]) (.+)$')
local time = now()

if record == '' then
  local claimed = head('running', time + lease, string.format('%s%d', identity, time))
  if redis.call('SET', key, claimed, 'PX', ttl, 'NX') then
    return claimed
  end
end

local state, ends, _, owner, attempt, origin, own, content = string.match(record, HEAD)
local token, asked, fingerprint = string.match(identity, '^token=(%x+) .* key=(%x+) .* fingerprint=(%x+) ')
if not state or string.find(record, '\n', 1, true) < #record then
  return '' -- which the client takes for what it is: no record of ours
elseif owner == token then
  return record -- a repetition
end

local lapsed = state == 'running' and takeover == '1' and #ends <= 13 and tonumber(ends) <= time
if (state == 'released' or lapsed) and own == asked and content == fingerprint then
  -- The client refuses what no script has written, so that must stay as it is. The last attempt has no next one.
  local operation, created = string.match(origin, '^ key=%x+ operation=(%S+) fingerprint=%x+ created=(%d+)$')
  if operation and string.find(operation, UUID) and #owner == 32 and string.lower(record) == record
    and #ends <= 13 and #created <= 13
    and #attempt <= 10 and tonumber(attempt) >= 1 and tonumber(attempt) < 2147483647
  then
    local remaining = string.format('%d', math.max(0, redis.call('PTTL', key)))
    record = head('running', time + lease, 'token=' .. token .. ' attempt=' .. (attempt + 1) .. origin)
    put(key, record, 'PX', ttl)
    return record .. remaining
  end
end
return record .. time
