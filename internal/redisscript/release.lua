-- Ends the claim that has the running record ARGV[1] under KEYS[1] without a response, and keeps the record for ARGV[2]
-- milliseconds. It knows the claim by its token: if the reply to a takeover was lost, its owner knows no more of the record.
--
-- If ARGV[2] is 0, the key is free. What is left of the record has attempt 0, and is replaced by whoever claims the key next. It
-- stays for two leases: the request for the claim may have been sent twice, and the second one may still be on its way.

local key, steps, running, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local line = read(key)
local owner = string.match(running, '^idempotency/1 running token=%x+ ')
local state, _, lease = string.match(line, HEAD)

if state == 'running' and string.sub(line, 1, #owner) == owner then
  local released = as('released', string.match(line, '^[^\n]*\n'))
  if tonumber(ttl) == 0 then
    put(key, string.gsub(released, ' attempt=%d+ ', ' attempt=0 ', 1), 'PX', string.format('%d', 2 * math.max(1, tonumber(lease))))
    if steps then
      redis.call('UNLINK', steps)
    end
    return 'OK'
  end
  put(key, released, 'PX', ttl)
  if steps then
    redis.call('PEXPIRE', steps, ttl)
  end
  return 'OK'
elseif state == 'released' and string.sub(line, 1, #owner + 1) == as('released', owner) then
  return 'OK' -- a repetition
end
return (line == '' or state) and 'lost' or 'invalid'
