-- Helpers of several scripts, in front of which this file stands.

-- ours gives a reply, and nil if it says that the key is of another type than ours.
-- Such a key is somebody else's: no script overwrites or deletes it.
local function ours(reply)
  if type(reply) == 'table' and reply.err and reply.err:find('^WRONGTYPE') then
    return nil
  end
  return reply
end

-- drop deletes those of the values among KEYS that are ours, and gives how many are
-- not. KEYS[2] is the lease, and kept the number of a value to leave alone, if any.
local function drop(kept)
  local values, foreign = {}, 0
  for i, key in ipairs(KEYS) do
    local value = i ~= 2 and i ~= kept
    if value and ours(redis.pcall('GETRANGE', key, 0, 0)) then
      values[#values + 1] = key
    elseif value then
      foreign = foreign + 1
    end
  end
  if #values > 0 then
    redis.call('DEL', unpack(values))
  end
  return foreign
end
