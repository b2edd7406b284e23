-- Claims KEYS[1] by the record ARGV[1] of a first attempt, kept for ARGV[2] milliseconds, or leaves it to who holds it. A
-- lapsed lease is taken over if ARGV[3] is 1. Returns the record as it is then. A number stands behind some: behind one
-- that somebody else holds, for how long the lease still runs; behind one that was claimed again, for how long its
-- predecessor would still have been kept.
--
-- A plain SET comes before this script, and only what it cannot decide comes here: what is running or released, and what
-- the server does not let it write. Such a server may still read, so this script reads first.

local key, steps, claim, ttl, takeover = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local record = redis.call('GET', key)
if not record then
  redis.call('SET', key, claim, 'PX', ttl)
  return claim
end

local state, owner, lease, given, attempt, origin, own, content = string.match(record, HEAD)
if state == 'done' then
  return record
end
local _, token, _, _, _, _, asked, fingerprint = string.match(claim, HEAD)
if not state or string.find(record, '\n', 1, true) < #record then
  return '' -- which the client takes for what it is: no record of ours
elseif owner == token then
  return record -- a repetition
end

local remaining, left = redis.call('PTTL', key), 0
if state == 'running' and #lease <= 13 and #given <= 13 then
  if remaining < 0 then -- somebody has taken the expiry away: nothing tells the age of the lease, so it counts from now
    redis.call('PEXPIRE', key, given)
    remaining = tonumber(given)
  end
  left = math.max(0, lease - (given - remaining))
end
local lapsed = state == 'running' and takeover == '1' and left == 0
local free = state == 'released' and attempt == '0' and #content == 64
if own == asked and (free or (state == 'released' or lapsed) and content == fingerprint) then
  -- The client refuses what neither it nor a script has written, so that must stay as it is. The last attempt has no next.
  local created = string.match(origin, ' created=(%d+)$')
  local whole = #owner == 32 and string.lower(record) == record and #lease <= 13 and #given <= 13 and #created <= 13
  if free and whole then
    put(key, claim, 'PX', ttl)
    return claim
  elseif whole and #attempt <= 10 and tonumber(attempt) >= 1 and tonumber(attempt) < 2147483647 then
    local claimed = string.match(claim, '^.- attempt=') .. string.format('%d', attempt + 1) .. origin .. '\n'
    put(key, claimed, 'PX', ttl)
    if steps then
      redis.call('PEXPIRE', steps, ttl)
    end
    return claimed .. string.format('%d', math.max(0, remaining))
  end
end
return record .. string.format('%d', left)
