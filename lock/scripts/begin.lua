-- The beginning of every script: the keys, and the server's time.
-- KEYS  1 record, 2 queue, 3 alive, 4 shares: one lock, one cluster slot. While a slot moves,
--       a cluster refuses a script if one of its keys is on another node, or on none: so a
--       script gets only the keys that it needs (target.go).
--
-- record  hash: o  owner ("" free): an owner's name, or "g:" and a queue entry
--                  that has been granted the lock and has not claimed it yet
--               x  when the owner's lease ends (ms)   l  the length of it (ms)
--               f  the last grant's first fence       b  the first fence of this record
--               q  the queue may have entries
--               lr the last owner that has released    m  the owner's label
--               d  until when the work counts as done (kind "once")
--               fu the last fence when it was forced: b is the first one since
-- queue   zset: entry -> its ticket: the lowest is next. An entry is mode:process:number.
-- alive   zset: process -> until when it counts as alive unless it bids again (ms)
-- shares  zset: owner, or "g:" and an entry, -> end of its lease (ms)
--
-- Modes: m mutex, o once, w write, r read, p permit. The first three own the
-- record, the others share it. All times are the server's. Every key has a TTL.
local record, queue, alive, shares = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local FENCES = 16     -- fences of a grant: its holder may pass the lock on within its process
local CLAIM = 2000    -- a grant that is not claimed for so long goes to the next entry (ms)
local RETAIN = 600000 -- how long after a lease its fence is remembered (ms)
local DAY = 86400000  -- how much longer at most, if the clock has stepped back: until it is past the fence (ms)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local micros = time[1] * 1000000 + time[2]

-- Gives the time to live (ms) of a key that is needed for so long, and then for its fence.
local function lifetime(needed, fence)
  return needed + RETAIN + math.floor(math.min(math.max(fence - micros, 0) / 1000, DAY))
end

