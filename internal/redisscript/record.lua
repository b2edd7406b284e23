-- This part is common to all scripts, and precedes the rest of each script.
--
-- A record is one string. Its first line is the head below. In a completed record, the stored form of the response
-- follows the head. Times are in milliseconds.
--
--   idempotency/1 running token=5f.. lease=60000 ttl=86400000 attempt=1 operation=e1.. user=d4.. fingerprint=9c.. created=17..
--
-- After Release, the head may end with the reason, as in " ended=panicked".
--
-- The state is running (also for an abandoned operation, whose lease is over), released or done. The token belongs to
-- the last claim, and no script overwrites the record of another token. While a claim lasts, no byte of its record
-- changes. The owner can therefore name the whole record, and a server that compares values completes the record
-- without a script.
--
-- A plain SET cannot read the time, so a record does not contain the end of its lease. The expiry of the record
-- replaces the end of the lease: the lease and the TTL in the head began at the same time, so the same part of both
-- has passed. A renewal moves the expiry.
--
-- The operation in the head is the ID in the name of the record, and binds the record to its name: a record that was
-- copied to another name is invalid. The scripts that settle a claim compare only the token, because a copy has the
-- token of another claim.
--
-- The user in the head is a digest: the first 128 bits of a SHA-256 of the user. A SCAN that reads the heads finds all
-- records of one user by the digest, so that the records can be listed and erased although Redis has no names of users.

local HEAD = '^idempotency/1 (%l+) token=(%x+) lease=(%d+) ttl=(%d+) attempt=(%d+)( operation=([%x-]+) user=%x+ fingerprint=(%x+) created=%d+)[%l= -]*\n'

-- read returns the beginning of the record under key, or the empty string for a missing key.
local function read(key)
  local line = redis.call('GETRANGE', key, 0, 511)
  if line == '' and redis.call('EXISTS', key) == 1 then
    line = '\n' -- an empty value is no record, but the key exists
  end
  return line
end

-- put stores a record under key, in place of another record of this library. A Redis without memory refuses a script
-- whose first write needs memory, but lets a script finish after its first write. GETEX counts as a write, changes
-- nothing and needs no memory. With GETEX as the first write, a claim can be settled although Redis has no memory.
local function put(key, ...)
  if redis.pcall('SET', key, ...).err then
    redis.call('GETEX', key)
    redis.call('SET', key, ...)
  end
end

-- origin_of returns the part of the running record that is the same for all attempts at the operation.
local function origin_of(running)
  return string.sub(running, string.find(running, ' operation=', 1, true), -2)
end

-- RESOLVED is the field for the resolution of the operation, in the hash beside the record. See checkpoint.lua for
-- the other fields.
local RESOLVED = ' resolved'

-- put_resolved replaces the hash beside a record by the resolution of the operation and the origin.
local function put_resolved(steps, origin, resolved, ttl)
  redis.call('UNLINK', steps)
  redis.call('HSET', steps, '', origin, RESOLVED, resolved)
  redis.call('PEXPIRE', steps, ttl)
end

-- remember_loss stores the checkpoint RecordLost for a record that was lost and is created again. The checkpoints
-- expire with the record. See checkpoint.lua for the form of the hash.
local function remember_loss(steps, origin, ttl)
  if redis.call('HGET', steps, '') ~= origin then
    redis.call('UNLINK', steps)
  end
  redis.call('HSET', steps, '', origin, '?lost?', '')
  redis.call('PEXPIRE', steps, ttl)
end

-- without_reason returns a head without the reason of a Release.
local function without_reason(head)
  return (string.gsub(head, ' ended=[%l-]+\n$', '\n', 1))
end

-- with_state returns the head of the running record with another state.
local function with_state(state, running)
  return 'idempotency/1 ' .. state .. string.sub(running, #'idempotency/1 running' + 1)
end
