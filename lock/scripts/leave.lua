-- Removes an entry from the queue, and passes on a lock that the entry has been granted.
-- ARGV  1 entry, 2 permits, 3 channel prefix
-- Gives 1 if the entry was in the queue or had been granted the lock, else 0.
local entry = ARGV[1]
local permits, channel, mine = tonumber(ARGV[2]), ARGV[3], ''
-- include state.lua
if not known then -- the record was evicted, and the queue perhaps was not
  return redis.call('ZREM', queue, entry)
end
-- include queue.lua
local mode = string.sub(entry, 1, 1)
check(mode)
local was = redis.call('ZREM', queue, entry)
if owner == 'g:' .. entry then
  redis.call('PEXPIRE', record, lifetime(0, fence))
  redis.call('HSET', record, 'o', '')
  owner, was = '', 1
elseif redis.call('ZREM', shares, 'g:' .. entry) == 1 then
  was = 1
  permits = math.max(permits, redis.call('ZCARD', shares) + 1) -- room for one: the n of the entry's caller is not known
end
expire(mode)
advance()
retain(mode)
return was
