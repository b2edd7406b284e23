-- Ends the abandoned operation of the record KEYS[1], whose key is ARGV[1], if it is of the attempt ARGV[2], and was created
-- at ARGV[3]. The record gets the token ARGV[4], so that its owner has lost the claim, and is kept for ARGV[5] milliseconds.
--
-- If ARGV[6] is given, it is the stored form of the response: the operation has happened. Otherwise it has not. Then ARGV[7]
-- is the name of the checkpoint, in the hash KEYS[2], that gets the note ARGV[8].

local key, steps, own, attempt, created = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local token, ttl, response, name, note = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local line = read(key)
if string.match(line, '^idempotency/1 %l+ token=(%x+) ') == token then
  return 'OK' -- a repetition
end
local refused = verdict(key, line, own, 'abandoned', attempt, created)
if refused then
  return refused
end

local running = string.gsub(line, ' token=%x+ ', ' token=' .. token .. ' ', 1)
if response ~= '' then
  put(key, as('done', running) .. response, 'PX', ttl)
  redis.call('UNLINK', steps)
  return 'OK'
end
put(key, as('released', running), 'PX', ttl)
local origin = origin_of(running)
if redis.call('HGET', steps, '') ~= origin then
  redis.call('UNLINK', steps)
end
redis.call('HSET', steps, '', origin, name, note)
redis.call('PEXPIRE', steps, ttl)
return 'OK'
