-- This part is common to the scripts for operators, between record.lua and the rest of each script.

-- verdict returns nil if the operator may change the record with the first line line: its operation, state, attempt and
-- time of creation are still those that the operator has seen. Otherwise verdict returns the reason for the refusal.
local function verdict(key, line, own_operation, asked_state, attempt, created)
  if line == '' then
    return 'missing'
  end
  local state, _, lease, stored_ttl, stored_attempt, origin, stored_operation = string.match(line, HEAD)
  if not state or stored_operation ~= own_operation or #lease > 13 or #stored_ttl > 13 or #stored_attempt > 10
    or (state ~= 'done' and string.find(line, '\n', 1, true) < #line)
    or (state ~= 'done' and state ~= 'running' and state ~= 'released')
  then
    return 'invalid'
  end

  if state == 'released' and stored_attempt == '0' then -- the key was freed
    return 'missing'
  end
  if state == 'running' then
    local remaining = redis.call('PTTL', key)
    if remaining < 0 or lease - (stored_ttl - remaining) > 0 then -- without an expiry, the age of the lease is unknown
      return 'running'
    end
    state = 'abandoned'
  elseif state == 'done' then
    state = 'completed'
  end
  if state ~= asked_state or tonumber(stored_attempt) ~= tonumber(attempt)
    or tonumber(string.match(origin, ' created=(%d+)$')) ~= tonumber(created)
  then
    return 'changed'
  end
end
