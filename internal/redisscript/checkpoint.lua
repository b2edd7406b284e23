-- Stores the data ARGV[3] as the checkpoint ARGV[2], unless the operation has a checkpoint with this name. The key
-- KEYS[1] must have the running record ARGV[1]. If ARGV[5] is given, a missing record is created again for ARGV[4]
-- milliseconds. The reply is a verdict. If the operation had the checkpoint before, the old data follow on the next
-- line.
--
-- The hash KEYS[2] has the checkpoints. Its field without a name has the origin of the operation: the part of the
-- head that is the same in all its records. The field RESOLVED has the resolution of the operation, and stays when
-- the operation is completed. The hash expires with the record. The comparison of the origin is necessary because the
-- record may be lost, or replaced by the record of a new operation, while the hash still exists.

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
local stored_origin = redis.call('HGET', steps, '')
if stored_origin == origin then
  local stored = redis.call('HGET', steps, name)
  if stored then
    return verdict .. '\n' .. stored
  end
  redis.call('HSET', steps, name, data)
  return verdict
end
if stored_origin then
  redis.call('UNLINK', steps)
end
redis.call('HSET', steps, '', origin, name, data)
local left = redis.call('PTTL', key)
redis.call('PEXPIRE', steps, left < 1 and ttl or left)
return verdict
