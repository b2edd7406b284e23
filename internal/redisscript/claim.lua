-- Claims the key KEYS[1] with ARGV[1], the running record of a first attempt, and an expiry of ARGV[2] milliseconds,
-- or returns the record that holds the key. If ARGV[3] is 1, the script may take over a lapsed lease. KEYS[2] is the
-- hash of the steps.
--
-- The reply is the record that the key has after the script. A number follows some records:
--   - after an open record of another attempt, the rest of its lease in milliseconds;
--   - after the record of a further attempt, the time for which its predecessor would still have been kept.
--
-- The client first tries a plain SET, and runs this script only if SET cannot decide: the record is running or
-- released, or the server refuses the write. A server that refuses writes may still read, so the script reads first.

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
  return '' -- the client reports the empty reply as an invalid record
elseif owner == token then
  return record -- a repetition of the call that was granted
end

local remaining, left = redis.call('PTTL', key), 0
if state == 'running' and #lease <= 13 and #given <= 13 then
  if remaining < 0 then -- somebody has removed the expiry, which shows the age of the lease: the lease begins anew
    redis.call('PEXPIRE', key, given)
    remaining = tonumber(given)
  end
  left = math.max(0, lease - (given - remaining))
end
local lapsed = state == 'running' and takeover == '1' and left == 0
local free = state == 'released' and attempt == '0' and #content == 64
if own == asked and (free or (state == 'released' or lapsed) and content == fingerprint) then
  -- Records that the client would refuse as damaged are left as they are. The last possible attempt number has no
  -- successor.
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
