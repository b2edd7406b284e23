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

local state, stored_token, lease, stored_ttl, attempt, origin, stored_operation, stored_fingerprint = string.match(record, HEAD)
if state == 'done' then
  return record
end
local _, own_token, _, _, _, _, own_operation, fingerprint = string.match(claim, HEAD)
if not state or string.find(record, '\n', 1, true) < #record then
  return '' -- the client reports the empty reply as an invalid record
elseif stored_token == own_token then
  return record -- a repetition of the call that was granted
end

local remaining, lease_left = redis.call('PTTL', key), 0
if state == 'running' and #lease <= 13 and #stored_ttl <= 13 then
  if remaining < 0 then -- somebody has removed the expiry, which shows the age of the lease: the lease begins anew
    redis.call('PEXPIRE', key, stored_ttl)
    remaining = tonumber(stored_ttl)
  end
  lease_left = math.max(0, lease - (stored_ttl - remaining))
end
local has_lapsed = state == 'running' and takeover == '1' and lease_left == 0
local is_free = state == 'released' and attempt == '0' and #stored_fingerprint == 64
if stored_operation == own_operation and (is_free or (state == 'released' or has_lapsed) and stored_fingerprint == fingerprint) then
  -- Records that the client would refuse as damaged are left as they are. The last possible attempt number has no
  -- successor.
  local created = string.match(origin, ' created=(%d+)$')
  local is_well_formed = #stored_token == 32 and string.lower(record) == record and not string.find(record, ' \n', 1, true)
    and #lease <= 13 and #stored_ttl <= 13 and #created <= 13
    and string.match(origin, ' user=(%x+) ') == string.match(claim, ' user=(%x+) ')
  if is_free and is_well_formed then
    put(key, claim, 'PX', ttl)
    return claim
  elseif is_well_formed and #attempt <= 10 and tonumber(attempt) >= 1 and tonumber(attempt) < 2147483647 then
    local next_record = string.match(claim, '^.- attempt=') .. string.format('%d', attempt + 1) .. origin .. '\n'
    put(key, next_record, 'PX', ttl)
    if steps then
      redis.call('PEXPIRE', steps, ttl)
    end
    return next_record .. string.format('%d', math.max(0, remaining))
  end
end
return record .. string.format('%d', lease_left)
