-- Removes the record KEYS[1], whose key is ARGV[1], if it is in the state ARGV[2], of the attempt ARGV[3], and was created
-- at ARGV[4]. One that is running stays.

local key, steps, own, asked, attempt, created = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local line = read(key)
if line == '' then
  return 'missing'
end

local state, _, lease, given, tried, origin, of = string.match(line, HEAD)
if not state or of ~= own or #lease > 13 or #given > 13 or #tried > 10
  or (state ~= 'done' and string.find(line, '\n', 1, true) < #line)
  or (state ~= 'done' and state ~= 'running' and state ~= 'released')
then
  return 'invalid'
end

if state == 'running' then
  local remaining = redis.call('PTTL', key)
  if remaining < 0 or lease - (given - remaining) > 0 then -- without an expiry, nothing tells the age of the lease
    return 'running'
  end
  state = 'abandoned'
elseif state == 'done' then
  state = 'completed'
end
if state ~= asked or tonumber(tried) ~= tonumber(attempt)
  or tonumber(string.match(origin, ' created=(%d+)$')) ~= tonumber(created)
then
  return 'changed'
end
if steps then
  redis.call('UNLINK', key, steps)
elseif state == 'completed' then -- there are no steps
  redis.call('UNLINK', key)
else
  return redis.error_reply('TRYAGAIN the steps may be on another server')
end
return 'OK'
