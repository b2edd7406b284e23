-- This part precedes record.lua and complete.lua, and handles the usual case of a completion with few instructions.
-- ARGV[2] is the completed record if the record is small enough to pass through Lua.
if #KEYS == 1 and redis.call('GET', KEYS[1]) == ARGV[1] then
  local stored = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  if stored.ok then
    return stored
  end
end
