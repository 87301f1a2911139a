-- What every script begins with: the keys, and the server's time.
-- KEYS  1 record, 2 queue, 3 alive, 4 shares: one lock, one cluster slot. While a slot moves,
--       a cluster refuses a script if one of its keys is elsewhere, or nowhere: so it is
--       given the keys that it needs (target.go).
--
-- record  hash: o  owner ("" free): an owner's name, or "g:" and a queue entry
--                  that has been granted the lock and has not claimed it yet
--               x  when the owner's lease ends (ms)   l  the length of it (ms)
--               f  the last grant's first fence       b  the first fence of this record
--               q  there may be somebody in the queue
--               lr the last owner that has released    m  the owner's label
--               d  until when the work counts as done (kind "once")
--               fu the last fence when it was forced: b is the first one since
-- queue   zset: entry -> its ticket: the lowest is next. An entry is mode:process:number.
-- alive   zset: process -> until when it counts as alive without news (ms)
-- shares  zset: owner, or "g:" and an entry, -> end of its lease (ms)
--
-- Modes: m mutex, o once, w write, r read, p permit. The first three own the
-- record, the others share it. All times are the server's. Every key has a TTL.
local record, queue, alive, shares = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local FENCES = 16     -- a grant has so many: its holder may pass the lock on within its process
local CLAIM = 2000    -- a grant nobody claims for this long goes to the next
local RETAIN = 600000 -- how long after a lease its fence is remembered
local DAY = 86400000  -- and at the most, if the clock has stepped back, until it is past the fence again

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local micros = time[1] * 1000000 + time[2]

-- Tells how long a key is to live that is needed for so long and then for its fence.
local function lifetime(needed, fence)
  return needed + RETAIN + math.floor(math.min(math.max(fence - micros, 0) / 1000, DAY))
end

