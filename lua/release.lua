-- Ends the claim of ARGV[1] (token) on KEYS[1] without a response. The record stays as long as it would have.

local key, token = KEYS[1], ARGV[1]
local line = read(key)
local state, _, identity, owner = string.match(line, HEAD)
if line ~= '' and not state then
  return 'invalid'
end
if owner ~= token or state == 'done' then
  return 'lost'
end
put(key, head('released', 0, identity), 'KEEPTTL')
return 'ok'
