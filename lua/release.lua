-- Ends the claim of ARGV[1] (token) on KEYS[1] without a response, and keeps the record for ARGV[2] milliseconds.

local key, token, ttl = KEYS[1], ARGV[1], ARGV[2]
local line = read(key)
local state, _, identity, owner = string.match(line, HEAD)
if line ~= '' and not state then
  return 'invalid'
end
if owner ~= token or state == 'done' then
  return 'lost'
end
if state == 'running' then -- else this is a repetition
  put(key, head('released', 0, identity), 'PX', ttl)
end
return 'ok'
