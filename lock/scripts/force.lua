-- Takes a lock from its holders, tells their processes to check their leases, and grants the
-- lock to the next entries in the queue.
-- ARGV  1 mode, 2 permits, 3 channel prefix, 4 the lock's last fence, from an earlier reply
--       (0: none yet)
-- Gives {"free"}         nobody has it; it may have been granted to an entry that has not
--                        claimed it
--       {"held", fence}  somebody has it, and this is its last fence, not ARGV 4
--       {"forced"}       it has been taken from its holders, now or by another copy
-- All earlier holders then have a fence below b. A copy that comes late finds another last
-- fence and does nothing. There is one exception: readers have the fence of the holder
-- before, so a late copy can take the lock from a reader, if the first copy came when nobody
-- had it.
-- include state.lua
local mode, permits, channel, mine = ARGV[1], tonumber(ARGV[2]), ARGV[3], ''
-- include queue.lua
check(mode)
if known and ARGV[4] ~= '0' and forced == ARGV[4] then
  return {'forced'}
end

local holders = {}
local function hold(holder)
  if string.sub(holder, 1, 2) ~= 'g:' then
    table.insert(holders, holder)
  end
end
if owner ~= '' and ends > now then
  hold(owner)
elseif not alone(mode) then -- a writer whose lease has ended may still stand in the record, beside readers
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', shares, '(' .. now, '+inf')) do
    hold(holder)
  end
end
if #holders == 0 then
  return {'free'}
elseif fence ~= tonumber(ARGV[4]) then
  return {'held', fence}
end

redis.call('PEXPIRE', record, lifetime(math.max(length, done - now, 0), fence)) -- first, since it needs no memory
fence = math.max(fence + FENCES, micros)
redis.call('HSET', record, 'f', fence, 'b', fence, 'fu', ARGV[4])
if owner ~= '' then
  redis.call('HSET', record, 'o', '', 'lr', owner, 'm', '') -- a late copy of its bid is in vain
  owner, length = '', 0
end
local told = {}
for _, holder in ipairs(holders) do
  if not alone(mode) then
    redis.call('ZREM', shares, holder)
  end
  local to = string.match(holder, '^[^:]*')
  if not told[to] then
    told[to] = true
    redis.pcall('PUBLISH', channel .. to, record .. ' ' .. to)
  end
end
expire(mode)
advance()
retain(mode)
return {'forced'}
