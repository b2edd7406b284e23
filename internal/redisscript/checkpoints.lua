-- Returns a verdict. If the key KEYS[1] has the running record ARGV[1], all checkpoints in the hash KEYS[2] follow:
-- for each checkpoint a line with the sizes of its name and its data, and then the name and the data.

local key, steps, running = KEYS[1], KEYS[2], ARGV[1]
local line = read(key)
if line == '' then
  return 'missing'
elseif line ~= running then
  return string.find(line, HEAD) and 'lost' or 'invalid'
end

local all = { 'OK\n' }
local origin = origin_of(running)
if redis.call('HGET', steps, '') == origin then
  local fields = redis.call('HGETALL', steps)
  for i = 1, #fields, 2 do
    if fields[i] ~= '' and fields[i] ~= RESOLVED then
      all[#all + 1] = #fields[i] .. ' ' .. #fields[i + 1] .. '\n' .. fields[i] .. fields[i + 1]
    end
  end
end
return table.concat(all)
