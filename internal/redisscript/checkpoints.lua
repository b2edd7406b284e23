-- Returns a verdict and, if the record with the head ARGV[1] is under KEYS[1], all checkpoints in the hash KEYS[2]: each of
-- them as the sizes of name and data on a line, and both behind that.

local key, steps, head = KEYS[1], KEYS[2], ARGV[1]
local line = read(key)
if line == '' then
  return 'missing'
elseif string.sub(line, 1, #head) ~= head then
  return string.find(line, HEAD) and 'lost' or 'invalid'
end

local all = { 'OK\n' }
local _, _, _, _, _, origin = string.match(head, HEAD)
if redis.call('HGET', steps, '') == origin then
  local fields = redis.call('HGETALL', steps)
  for i = 1, #fields, 2 do
    if fields[i] ~= '' then
      all[#all + 1] = #fields[i] .. ' ' .. #fields[i + 1] .. '\n' .. fields[i] .. fields[i + 1]
    end
  end
end
return table.concat(all)
