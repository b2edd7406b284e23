-- Lets the lease of KEYS[1] run for ARGV[2] milliseconds from now, if its token is ARGV[1]. A record that is missing is
-- made again from its identity, if that is given as ARGV[3].

local key, token, lease, identity = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local line = read(key)
if line == '' and not identity then
  return 'missing'
end
local state, _, own, owner = string.match(line, HEAD)
if line ~= '' and not state then
  return 'invalid'
end
if line ~= '' and (owner ~= token or state ~= 'running') then
  return 'lost'
end
local ttl = math.max(redis.call('PTTL', key), lease)
put(key, head('running', now() + lease, identity or own), 'PX', ttl)
return line == '' and 'restored' or 'ok'
