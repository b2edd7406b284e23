-- Common to all scripts: each is appended to this file.
--
-- A record is one string. Its first line is the head below; a completed record goes on with the stored form of the
-- response. Times are milliseconds of Redis' own clock.
--
--   idempotency/1 running lease=1763712060000 token=5f.. attempt=1 operation=0d.. fingerprint=9c.. created=1763712000000
--
-- The state is running (perhaps abandoned, if the lease is over), released or done. The token is that of the last
-- claim; no script writes over a record of another token.

local HEAD = '^idempotency/1 (%l+) lease=(%d+) ' ..
  '(token=(%x+) attempt=(%d+) operation=([%x-]+) fingerprint=(%x+) created=(%d+))\n'

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- identity returns the part of the head that stays as it is for as long as a claim does.
local function identity(token, attempt, operation, fingerprint, created)
  return string.format('token=%s attempt=%d operation=%s fingerprint=%s created=%.0f',
    token, attempt, operation, fingerprint, tonumber(created))
end

local function head(state, lease, identity)
  return string.format('idempotency/1 %s lease=%.0f %s\n', state, lease, identity)
end

-- read returns the beginning of the record and what its first line says. It is empty if there is no record, and all
-- that is returned if there is one but not of ours.
local function read(key)
  local line = redis.call('GETRANGE', key, 0, 511)
  if line == '' and redis.call('EXISTS', key) == 1 then
    line = '\n' -- an empty string is something, and not ours
  end
  return line, string.match(line, HEAD)
end

-- settle is called before a record of ours is replaced. A Redis without memory refuses a script whose first write needs
-- some, but lets a script finish that has begun to write: GETEX is a write, and changes nothing. So whatever was claimed
-- can be settled.
local function settle(key)
  redis.call('GETEX', key)
end
