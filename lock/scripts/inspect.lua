-- Tells about a lock that one owner has, and changes nothing.
-- ARGV  none
-- Gives {1 if it is held, fence, remaining ms, length of the queue, label}
local found = redis.call('HMGET', record, 'o', 'x', 'f', 'm')
local remaining = tonumber(found[2] or 0) - now
local held = (found[1] or '') ~= '' and remaining > 0
return {held and 1 or 0, tonumber(found[3] or 0), held and remaining or 0, redis.call('ZCARD', queue), held and found[4] or ''}
