-- Common to all scripts: it stands before the rest of each.
--
-- A record is one string. Its first line is the head below; a completed record goes on with the stored form of the
-- response. Times are milliseconds.
--
-- idempotency/1 running token=5f.. lease=60000 ttl=86400000 attempt=1 key=e1.. fingerprint=9c.. created=17..
--
-- The state is running (perhaps abandoned, if the lease is over), released or done. The token is that of the last
-- claim; no script writes over a record of another token. While a claim lasts, its record does not change by a byte. So
-- its owner can name it whole, and a server that compares values needs no script to complete it.
--
-- A record does not say when its lease ends, because a plain SET knows no time. Its expiry does: the lease began when the
-- record was given the TTL that its head names, so what is gone of the TTL is gone of the lease. A renewal moves the expiry.
--
-- The key binds the record to its name: it is the first half of the digest there. A record that was copied to another
-- name counts as invalid. 128 bits are enough: a copy passes only at a name with the same half, and to find one takes
-- 2^128 tries. The other half would cost each record 32 bytes more. The scripts that settle a claim compare the token
-- alone: a copy has that of another claim.

local HEAD = '^idempotency/1 (%l+) token=(%x+) lease=(%d+) ttl=(%d+) attempt=(%d+)( key=(%x+) fingerprint=(%x+) created=%d+)\n'

-- read returns the beginning of the record, which is empty if there is none.
local function read(key)
  local line = redis.call('GETRANGE', key, 0, 511)
  if line == '' and redis.call('EXISTS', key) == 1 then
    line = '\n' -- an empty string is something, and not ours
  end
  return line
end

-- put replaces a record of ours. A Redis without memory refuses a script whose first write needs some, but lets a
-- script finish that has begun to write: GETEX is a write, and changes nothing. So whatever was claimed can be settled.
local function put(key, ...)
  if redis.pcall('SET', key, ...).err then
    redis.call('GETEX', key)
    redis.call('SET', key, ...)
  end
end

-- origin_of returns what the running record of a claim has in common with those of all attempts at its operation.
local function origin_of(running)
  return string.sub(running, string.find(running, ' key=', 1, true), -2)
end

-- The field that says how the operation was resolved, in the hash beside the record: checkpoint.lua says what else is there.
local RESOLVED = ' resolved'

-- put_resolved makes RESOLVED, with the origin of the operation, all that there is in the hash beside a record.
local function put_resolved(steps, origin, resolved, ttl)
  redis.call('UNLINK', steps)
  redis.call('HSET', steps, '', origin, RESOLVED, resolved)
  redis.call('PEXPIRE', steps, ttl)
end

-- remember_loss stores the checkpoint RecordLost of a record with that origin, which was lost and has been made again, and
-- lets the steps expire with the record. Checkpoint.lua says how the hash is made.
local function remember_loss(steps, origin, ttl)
  if redis.call('HGET', steps, '') ~= origin then
    redis.call('UNLINK', steps)
  end
  redis.call('HSET', steps, '', origin, '?lost?', '')
  redis.call('PEXPIRE', steps, ttl)
end

-- as returns the running record of a claim in another state, without a response.
local function as(state, running)
  return 'idempotency/1 ' .. state .. string.sub(running, #'idempotency/1 running' + 1)
end
