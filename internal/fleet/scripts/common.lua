-- Helpers of several scripts, to which this file is prepended.

-- ours returns a reply, or nil if it is the error that the key is of another type than ours.
-- Such a key belongs to another application: no script overwrites or deletes it.
local function ours(reply)
  if type(reply) == 'table' and reply.err and reply.err:find('^WRONGTYPE') then
    return nil
  end
  return reply
end

-- now returns the server's time in ms.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- read takes the fields and values of a lease. It returns its token, and for the holds ("h:") that
-- end later than after: their ends by field, the first end and the last. The ends by field and the
-- last end include the notes of holds that were lifted before they arrived ("x:", see
-- invalidate.lua), which keep no value from being published.
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

-- drop deletes the values among KEYS that are ours, and returns how many are not. KEYS[2]
-- is the lease. kept has true for the numbers of values to leave alone.
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

-- expire marks the values among KEYS that can have a mark, leaves them for at most life ms, and drops
-- the others: nulls, values of another layout, and all values if there is no memory. The mark is
-- byte 7, outside the checksum, see cache/format.go. expire returns how many keys are not ours.
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
