-- Ends the claim that has the running record ARGV[1] under KEYS[1] without a response, and keeps the record for ARGV[2]
-- milliseconds. It knows the claim by its token: if the reply to a takeover was lost, its owner knows no more of the record.

local key, steps, running, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local line = read(key)
local owner = string.match(running, '^idempotency/1 running token=%x+ ')
local state = string.match(line, HEAD)

if state == 'running' and string.sub(line, 1, #owner) == owner then
  put(key, as('released', string.match(line, '^[^\n]*\n')), 'PX', ttl)
  if steps then
    redis.call('PEXPIRE', steps, ttl)
  end
  return 'OK'
elseif state == 'released' and string.sub(line, 1, #owner + 1) == as('released', owner) then
  return 'OK' -- a repetition
end
return (line == '' or state) and 'lost' or 'invalid'
