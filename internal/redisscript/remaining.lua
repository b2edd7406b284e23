-- Returns for how many milliseconds the completed record KEYS[1] is still kept, if ARGV[1] is its head, or 0.
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) == ARGV[1] then
  return math.max(0, redis.call('PTTL', KEYS[1]))
end
return 0
