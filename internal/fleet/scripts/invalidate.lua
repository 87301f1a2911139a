-- Drops the values of an id, or marks them as expired, ends its lease, and notifies all processes.
-- A hold prevents new leases: for the length of a write, or for as long as the source's replicas
-- may lag. An id can have holds of several writers; each writer lifts its own. A hold may arrive after
-- it was lifted: its caller leaves at a timeout, and the end of a short write takes another
-- connection. It may also arrive twice: a client repeats a command whose reply was lost. So lifting a
-- hold that is not there, or whose writer got no reply, leaves a note ("x:") for a while, and a
-- placing that finds its note does nothing.
-- KEYS    1 value, 2 lease, 3... values of other schemas
-- ARGV    1 hold to place ("" for none), 2 its life in ms, 3 holds to lift, separated by
--         blanks, with a "?" before each whose writer got no reply, 4 channel, 5 invalidation message, 6 how long marked values may stay, in ms;
--         0 to drop them, 7 the life of the note in ms
-- Returns how many of the keys are of another type. While there is one, nothing can be
--         published, so the script does the rest of its work.
local lease = ours(redis.pcall('HGETALL', KEYS[2]))
local leased = lease ~= nil
if leased and lease.err then
  return lease
elseif not leased or redis.call('PTTL', KEYS[2]) == -1 then -- one without a TTL, which none of our scripts writes
  lease = {}
end
local at = (#lease > 0 or ARGV[1] ~= '' or ARGV[3] ~= '') and now() or 0
local _, holds = read(lease, at)
if holds['x:' .. ARGV[1]] then
  return 0
end
-- The deletions come first: they need no memory, and once a script has written,
-- a server that is out of memory lets it finish.
local life = tonumber(ARGV[6])
local foreign = life > 0 and expire(life) or drop({})
if leased then
  redis.call('DEL', KEYS[2])
else
  foreign = foreign + 1
end
for unsure, token in ARGV[3]:gmatch('(%??)(%S+)') do
  if unsure ~= '' or not holds['h:' .. token] then
    holds['x:' .. token] = at + tonumber(ARGV[7])
  end
  holds['h:' .. token] = nil
end
if leased and ARGV[1] ~= '' then
  holds['h:' .. ARGV[1]] = at + tonumber(ARGV[2])
end
local last = at
for field, ends in pairs(leased and holds or {}) do
  redis.call('HSET', KEYS[2], field, string.format('%.0f', ends))
  last = math.max(last, ends)
end
if last > at then
  redis.call('PEXPIRE', KEYS[2], last - at)
end
redis.pcall('PUBLISH', ARGV[4], ARGV[5])
return foreign
