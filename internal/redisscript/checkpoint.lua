-- Stores the checkpoint ARGV[3] under the name ARGV[2], unless there is one, if the running record ARGV[1] is under KEYS[1].
-- A record that is missing is made again for ARGV[4] milliseconds if ARGV[5] is given. Returns a verdict and, if there was
-- one, on the next line what is stored.
--
-- The checkpoints are a hash, KEYS[2]. Its field without a name says of which operation they are, by all that its records
-- have in common. Its field RESOLVED says how the operation was resolved, and stays when that is completed. The hash expires
-- with the record. But a record can be lost, or replaced by that of a new operation, while the hash is there.

local key, steps, running, name, data, ttl, again = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local line, verdict = read(key), 'OK'

if line == '' and again then
  put(key, running, 'PX', ttl)
  remember_loss(steps, origin_of(running), ttl)
  verdict = 'restored'
elseif line == '' then
  return 'missing'
elseif line ~= running then
  return string.find(line, HEAD) and 'lost' or 'invalid'
end

local origin = origin_of(running)
local of = redis.call('HGET', steps, '')
if of == origin then
  local stored = redis.call('HGET', steps, name)
  if stored then
    return verdict .. '\n' .. stored
  end
  redis.call('HSET', steps, name, data)
  return verdict
end
if of then
  redis.call('UNLINK', steps)
end
redis.call('HSET', steps, '', origin, name, data)
local left = redis.call('PTTL', key)
redis.call('PEXPIRE', steps, left < 1 and ttl or left)
return verdict
