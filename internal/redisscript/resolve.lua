-- Ends the abandoned operation of the record KEYS[1], if the operation of the record is ARGV[1], its attempt ARGV[2] and
-- its time of creation ARGV[3]. The record gets the token ARGV[4], so that its owner loses the claim, and stays for
-- ARGV[5] milliseconds.
--
-- A non-empty ARGV[6] is the stored form of the response: the operation has happened. With an empty ARGV[6], the
-- operation has not happened, and its checkpoints stay except those named by ARGV[8] and the following arguments.
-- ARGV[7] is the stored form of the resolution.

local key, steps, own_operation, attempt, created = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local token, ttl, response, resolved = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local line = read(key)
if string.match(line, '^idempotency/1 %l+ token=(%x+) ') == token then
  return 'OK' -- a repetition of the call that resolved the operation
end
local refused = verdict(key, line, own_operation, 'abandoned', attempt, created)
if refused then
  return refused
end

local running = without_reason(string.gsub(line, ' token=%x+ ', ' token=' .. token .. ' ', 1))
local origin = origin_of(running)
if response ~= '' then
  put(key, with_state('done', running) .. response, 'PX', ttl)
  put_resolved(steps, origin, resolved, ttl)
  note_expiry(key, line, ttl)
  return 'OK'
end

local left_out = { [''] = true, [RESOLVED] = true }
for i = 8, #ARGV do
  left_out[ARGV[i]] = true
end
local stored_origin, fields = redis.call('HGET', steps, ''), redis.call('HGETALL', steps)
put(key, with_state('released', running), 'PX', ttl)
put_resolved(steps, origin, resolved, ttl)
for i = 1, #fields, 2 do
  if stored_origin == origin and not left_out[fields[i]] then
    redis.call('HSET', steps, fields[i], fields[i + 1])
  end
end
note_expiry(key, line, ttl)
return 'OK'
