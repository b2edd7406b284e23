-- Renews the lease of the running record ARGV[1] under KEYS[1]: the record expires in ARGV[2] milliseconds, or at its
-- present expiry if that is later. If ARGV[3] is given, a missing record is created again. KEYS[2] is the hash of the
-- steps, if the operation may have steps.

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
