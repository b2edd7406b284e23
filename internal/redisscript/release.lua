-- Ends the claim with the running record ARGV[1] on KEYS[1] without a response, and keeps the record for ARGV[2]
-- milliseconds, with the reason ARGV[3]. The script recognises the claim by its token, because an owner that missed the
-- reply to a takeover does not know the rest of the record.
--
-- If ARGV[4] is 1, the attempt is abandoned: the record stays running with a lease of 0, and keeps its expiry. The TTL in
-- the head becomes the time that is left, so that no part of the lease is left.
--
-- If ARGV[2] is 0, the script frees the key: the record gets attempt 0, and the next claim replaces the record. The
-- record stays for two leases, because the client may have sent the request for the claim twice, and the second copy
-- may still arrive.
--
-- With ARGV[5], the records of a user are counted.

local key, steps, running, ttl, reason, abandoned, counted = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local line = read(key)
local owner = string.match(running, '^idempotency/1 running token=%x+ ')
local state, _, lease, stored_ttl = string.match(line, HEAD)

if state == 'running' and string.sub(line, 1, #owner) == owner then
  local ended = string.match(line, '^(.- created=%d+)')
  if reason ~= '' then
    ended = ended .. ' ended=' .. reason
  end
  if abandoned == '1' then
    local left = redis.call('PTTL', key)
    left = string.format('%d', left > 0 and left or stored_ttl)
    put(key, string.gsub(ended, ' lease=%d+ ttl=%d+ ', ' lease=0 ttl=' .. left .. ' ', 1) .. '\n', 'PX', left)
    return 'OK'
  end
  local released = with_state('released', ended .. '\n')
  if tonumber(ttl) == 0 then
    ttl = string.format('%d', 2 * math.max(1, tonumber(lease)))
    put(key, string.gsub(released, ' attempt=%d+ ', ' attempt=0 ', 1), 'PX', ttl)
    if steps then
      redis.call('UNLINK', steps)
    end
  else
    put(key, released, 'PX', ttl)
    if steps then
      redis.call('PEXPIRE', steps, ttl)
    end
  end
  if counted then
    note_expiry(key, line, ttl)
  end
  return 'OK'
elseif state == 'released' and string.sub(line, 1, #owner + 1) == with_state('released', owner) then
  return 'OK' -- a repetition of the call that released the record
end
return (line == '' or state) and 'lost' or 'invalid'
