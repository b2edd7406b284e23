-- Returns for how many milliseconds Redis still keeps the completed record KEYS[1] with the head ARGV[1], or 0 for
-- any other record.
if redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) == ARGV[1] then
  return math.max(0, redis.call('PTTL', KEYS[1]))
end
return 0
