-- Puts a snapshot in use, deletes the old one, shortens the log, and releases the lease.
-- KEYS  1 record, 2 log, 3 lease, 4 new snapshot, 5 old snapshot
-- ARGV  1 header, 2 token of the lease, 3 shape of the new snapshot, 4 its pieces, 5 the entry
--       of the log up to which it goes, 6 pieces of the old snapshot, 7 1 for the snapshot of a
--       Rebuild, 0 for one that must have the old snapshot's shape, 8 life in ms, 9 how long
--       the log keeps an entry in ms, 10 channel, 11 message, 12 what entry 5 holds ("": the
--       caller does not know), 13 when the filter was last invalidated, as of the begin of a Rebuild
-- Gives {"ok"}
--       {"lost"}  the record or the lease is gone, or another one is there, or the old snapshot
--       comes from another Rebuild, or the filter was invalidated since this one began
--       {"stale", pieces}  the old snapshot is not the one in use
--       {"gap"}  the log does not have entry 5: it has lost entries that the snapshot needs
-- Run twice, it finds the new snapshot in use and gives ok.
local record = redis.pcall('HMGET', KEYS[1], 'header', 'pieces', 'shape', 'last', 'invalid')
if record[1] ~= ARGV[1] then
  return {'lost'}
end
if record[2] == ARGV[4] then
  return {'ok'}
end
if redis.pcall('GET', KEYS[3]) ~= ARGV[2] or (ARGV[7] == '0' and record[3] ~= ARGV[3]) then
  return {'lost'}
end
if ARGV[7] == '1' and (record[5] or '0') ~= ARGV[13] then
  return {'lost'}
end
if record[2] ~= ARGV[6] then
  return {'stale', record[2] or ''}
end
local entry = redis.pcall('XRANGE', KEYS[2], ARGV[5], ARGV[5])[1]
if not entry or ARGV[12] ~= '' and entry[2][2] ~= ARGV[12] then
  return {'gap'}
end
local clock = now()
redis.call('HSET', KEYS[1], 'shape', ARGV[3], 'pieces', ARGV[4], 'at', ARGV[5])
redis.call('HDEL', KEYS[1], 'damaged')
if ARGV[7] == '1' then
  redis.call('HSET', KEYS[1], 'since', whole(clock))
end
redis.call('UNLINK', KEYS[3], KEYS[5])
for _, key in ipairs({KEYS[1], KEYS[2], KEYS[4]}) do
  redis.call('PEXPIRE', key, ARGV[8])
end
local _, ms = number(ARGV[5])
local _, newest = number(record[4])
if newest and newest - clock > tonumber(ARGV[9]) then -- the clock was put back: no entry would ever be old
  redis.call('XTRIM', KEYS[2], 'MINID', ARGV[5])
else
  shorten(KEYS[2], math.min(ms - 1, clock - ARGV[9]))
end
redis.pcall('PUBLISH', ARGV[10], ARGV[11])
return {'ok'}
