-- Reads the state of a lock, and changes nothing.
-- ARGV  1 mode
-- Gives {1 if it is held or granted, number of holders, fence, remaining ms of the lease
--        that ends first, length of the queue, how long the first living entry has waited
--        (µs), how long the work still counts as done (ms), label}
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
      if string.sub(holder, 1, 2) == 'g:' then -- the share of a grant ends within CLAIM
        holders = holders - 1
      end
    end
  end
end

-- Entries of dead processes are in the queue until the lock comes to them. If the first
-- thousand are all dead, it looks no further.
local waited, first = 0, redis.call('ZRANGE', queue, 0, 999, 'WITHSCORES')
for i = 1, #first, 2 do
  local seen = redis.call('ZSCORE', alive, string.match(first[i], '^.:([^:]*):') or '')
  if seen and tonumber(seen) > now then
    waited = math.max(micros - first[i + 1], 0)
    break
  end
end
return {taken and 1 or 0, holders, fence, remaining, redis.call('ZCARD', queue), waited, math.max(done - now, 0), label}
