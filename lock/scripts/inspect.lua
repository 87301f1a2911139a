-- Tells about a lock, and changes nothing.
-- ARGV  1 mode
-- Gives {1 if somebody has it or has been granted it, how many have it, fence,
--        remaining ms of the lease that ends first, length of the queue,
--        for how long the first of it has waited (µs), for how long the work counts as
--        done (ms), label}
-- include state.lua
local taken, holders, remaining, label = owner ~= '' and ends > now, 0, 0, ''
if taken then
  remaining = ends - now
  if string.sub(owner, 1, 2) ~= 'g:' then
    holders, label = 1, redis.call('HMGET', record, 'm')[1] or ''
  end
elseif ARGV[1] ~= 'm' and ARGV[1] ~= 'o' then
  local first = redis.call('ZRANGEBYSCORE', shares, '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if first then
    taken, remaining = true, math.min(first - now, length)
    holders = redis.call('ZCARD', shares) - #redis.call('ZRANGEBYSCORE', shares, '-inf', now)
    for _, holder in ipairs(redis.call('ZRANGEBYSCORE', shares, '(' .. now, now + CLAIM)) do
      if string.sub(holder, 1, 2) == 'g:' then -- such a one ends within CLAIM
        holders = holders - 1
      end
    end
  end
end

-- The dead stand in the queue until the lock comes to them. A thousand of them and
-- nobody alive before is not worth a longer look.
local waited, first = 0, redis.call('ZRANGE', queue, 0, 999, 'WITHSCORES')
for i = 1, #first, 2 do
  local seen = redis.call('ZSCORE', alive, string.match(first[i], '^.:([^:]*):') or '')
  if seen and tonumber(seen) > now then
    waited = math.max(micros - first[i + 1], 0)
    break
  end
end
return {taken and 1 or 0, holders, fence, remaining, redis.call('ZCARD', queue), waited, math.max(done - now, 0), label}
