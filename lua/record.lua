-- Common to all scripts: each is appended to this file.
--
-- A record is one string. Its first line is the head below; a completed record goes on with the stored form of the
-- response. Times are milliseconds of Redis' own clock.
--
-- idempotency/1 running lease=1763712060000 token=5f.. attempt=1 key=e1.. operation=0d.. fingerprint=9c.. created=17..
--
-- The state is running (perhaps abandoned, if the lease is over), released or done. The token is that of the last
-- claim; no script writes over a record of another token. What follows the lease is the identity: it stays as it is for
-- as long as a claim does.
--
-- The key binds the record to its name: it is the first half of the digest there. A record that was copied to another
-- name counts as invalid. 128 bits are enough: a copy passes only at a name with the same half, and to find one takes
-- 2^128 tries. The other half would cost each record 32 bytes more. The scripts that settle a claim compare the token
-- alone: a copy has that of another claim.

local HEAD = '^idempotency/1 (%l+) lease=(%d+) (token=(%x+) attempt=(%d+)( key=(%x+) operation=%S+ fingerprint=(%x+) %S+))\n'

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function head(state, lease, identity)
  return string.format('idempotency/1 %s lease=%d %s\n', state, lease, identity)
end

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
