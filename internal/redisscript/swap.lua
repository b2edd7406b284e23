-- Stands before complete.lua, and before all that it has in common with others: this is the usual case.
-- Only a record that is small enough to pass through Lua is ARGV[2].
if #KEYS == 1 and redis.call('GET', KEYS[1]) == ARGV[1] then
  local stored = redis.pcall('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  if stored.ok then
    return stored
  end
end
