-- Lets the lease of KEYS[1] run for ARGV[2] milliseconds from now, if its token is ARGV[1]. A record that is missing is
-- made again from its identity, ARGV[3].

local key, token, lease = KEYS[1], ARGV[1], tonumber(ARGV[2])
local line = read(key)
local state, _, _, owner = string.match(line, HEAD)
if line ~= '' and not state then
  return 'invalid'
end
if line ~= '' and (owner ~= token or state ~= 'running') then
  return 'lost'
end
local ttl = math.max(redis.call('PTTL', key), lease)
put(key, head('running', now() + lease, ARGV[3]), 'PX', ttl)
return line == '' and 'restored' or 'ok'
