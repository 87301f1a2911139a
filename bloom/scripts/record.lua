-- Makes the record of a filter and its log where there are none.
-- KEYS  1 record, 2 log
-- ARGV  1 header to begin with, 2 life in ms, 3 corrupt header to replace ("" for none),
--       4 shape of the snapshot to begin with, which is empty ("" for none)
-- Gives the header and the newest entry of the log that are stored afterwards, and what that
-- entry holds.
-- It replaces a record that is no hash, that has no header or the corrupt one, or whose
-- newest entry is not the newest of the log. If a record or a log was there before, the new
-- record has no snapshot, since nobody knows which ids the old one held.
local record = redis.pcall('HMGET', KEYS[1], 'header', 'last')
local newest = redis.pcall('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
if record[1] and record[1] ~= ARGV[3] and #newest > 0 and newest[1][1] == record[2] then
  return {record[1], record[2], newest[1][2][2]}
end
local shape, begin = redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and ARGV[4] or '', whole(now()) .. '-1'
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('XADD', KEYS[2], begin, 'begin', '')
redis.call('HSET', KEYS[1], 'header', ARGV[1], 'shape', shape, 'pieces', '', 'at', begin, 'last', begin)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return {ARGV[1], begin, ''}
