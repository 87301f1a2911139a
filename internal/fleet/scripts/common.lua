-- Helpers of several scripts, in front of which this file stands.

-- ours gives a reply, and nil if it says that the key is of another type than ours.
-- Such a key is somebody else's: no script overwrites or deletes it.
local function ours(reply)
  if type(reply) == 'table' and reply.err and reply.err:find('^WRONGTYPE') then
    return nil
  end
  return reply
end

-- now is the server's time in ms.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- read gives the token of a lease whose fields are given, and of the holds ("h:") that end after a
-- time: their ends by field, the first of them and the last. Among these fields are those of
-- holds that were lifted before they arrived ("x:"), which close nothing, see invalidate.lua.
local function read(lease, after)
  local token, holds, first, last = nil, {}, nil, after
  for i = 1, #lease, 2 do
    local field, ends = lease[i], tonumber(lease[i + 1])
    local kind = field:sub(1, 2)
    if field == 't' then
      token = lease[i + 1]
    elseif (kind == 'h:' or kind == 'x:') and ends and ends > after then
      holds[field], last = ends, math.max(last, ends)
      first = kind == 'h:' and math.min(first or ends, ends) or first
    end
  end
  return token, holds, first, last
end

-- drop deletes those of the values among KEYS that are ours, and gives how many are
-- not. KEYS[2] is the lease, and kept says by their numbers which values to leave alone.
local function drop(kept)
  local values, foreign = {}, 0
  for i, key in ipairs(KEYS) do
    local value = i ~= 2 and not kept[i]
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

-- expire sets the mark of those of the values among KEYS that can have one, and drops the others:
-- nulls, what has another layout, and all where there is no memory for it. See cache/format.go,
-- which has the mark in byte 7, outside the checksum. It gives what drop gives.
local function expire(life)
  local marked = {}
  for i, key in ipairs(KEYS) do
    local head = i ~= 2 and ours(redis.pcall('GETRANGE', key, 0, 6))
    if type(head) == 'string' and head:sub(1, 4) == 'Lv\3\1' then
      local value, left = head .. '\1' .. redis.call('GETRANGE', key, 8, -1), redis.call('PTTL', key)
      left = left < 0 and life or math.min(left, life)
      local set = left > 0 and redis.pcall('SET', key, value, 'PX', left)
      marked[i] = set and not set.err
    end
  end
  return drop(marked)
end
