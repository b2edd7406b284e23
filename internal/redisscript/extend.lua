-- Lets the lease of the running record ARGV[1] under KEYS[1] begin anew: it expires in ARGV[2] milliseconds, or as late as
-- before. A record that is missing is made again if ARGV[3] is given. Its steps are in the hash KEYS[2], if there may be any.

local key, steps, running, ttl, again = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), ARGV[3]
local line = read(key)

if line == running then
  ttl = math.max(redis.call('PTTL', key), ttl)
  redis.call('PEXPIRE', key, ttl)
  if steps then
    redis.call('PEXPIRE', steps, ttl)
  end
  return 'OK'
elseif line == '' and again then
  put(key, running, 'PX', ttl)
  if steps then
    remember_loss(steps, origin_of(running), ttl)
  end
  return 'restored'
elseif line == '' then
  return 'missing'
end
return string.find(line, HEAD) and 'lost' or 'invalid'
