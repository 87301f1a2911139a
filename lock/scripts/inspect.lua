-- Tells about a lock, and changes nothing.
-- KEYS  1 record, 2 queue, 4 shares
-- ARGV  none
-- Gives {1 if it is held, fence, remaining ms, length of the queue, label, shares}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', KEYS[1], 'o', 'x', 'f', 'm')
local owner, remaining = found[1] or '', tonumber(found[2] or 0) - now
local last = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2]
local held = owner ~= '' and remaining > 0
if not held and last and tonumber(last) > now then
  held, remaining = true, tonumber(last) - now
end
local shares = redis.call('ZCOUNT', KEYS[4], '(' .. string.format('%.0f', now), '+inf')
return {held and 1 or 0, tonumber(found[3] or 0), held and remaining or 0, redis.call('ZCARD', KEYS[2]), held and found[4] or '', shares}
