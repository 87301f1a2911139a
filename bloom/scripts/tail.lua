-- Reads the log from where the caller is, and the state of the filter at this very
-- moment.
-- KEYS  1 record, 2 log, 3 sums of the generation that the caller follows
-- ARGV  1 header, 2 the newest entry that the caller knows ("" for none: it only
--       wants to know where the log ends), 3 how many entries to read,
--       4 "all" for all sums, "" for their total
-- Gives {"lost"}  the record is gone, or another
--       {"gap", current, next}  the log does not hold that entry (any more), or what
--       follows makes no sense
--       {"ok", current, next, newest entry read, hashes, 1 if there are more,
--        sums: a flat list of fields and values, empty if there are none,
--        what was cleared: a flat list of how many of the hashes came before, the
--        generation, and the positions}
-- The entry that the caller knows must still be there: that rules out both a log
-- cut off behind it and another history, as after a failover that lost writes.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local record = redis.call('HMGET', KEYS[1], 'current', 'next')
local current, nxt = record[1] or '', record[2] or ''
local entries
if ARGV[2] == '' then
  entries = redis.pcall('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
else
  entries = redis.pcall('XRANGE', KEYS[2], ARGV[2], '+', 'COUNT', ARGV[3] + 1)
end
if entries.err or #entries == 0 or (ARGV[2] ~= '' and entries[1][1] ~= ARGV[2]) then
  return {'gap', current, nxt}
end
local hashes, cleared = {}, {}
for i = 2, #entries do
  local field, value = entries[i][2][1], entries[i][2][2]
  if field == 'h' then
    if #value ~= 16 then
      return {'gap', current, nxt} -- corrupt; the table has what it should say
    end
    hashes[#hashes + 1] = value
  elseif field == 'c' then
    cleared[#cleared + 1] = tostring(#hashes)
    cleared[#cleared + 1] = value
    cleared[#cleared + 1] = entries[i][2][4] or ''
  end
end
local more = ARGV[2] ~= '' and #entries > tonumber(ARGV[3])
local sums
if ARGV[4] == 'all' then
  sums = redis.pcall('HGETALL', KEYS[3])
else
  local total = redis.pcall('HGET', KEYS[3], 'n')
  sums = type(total) == 'string' and {'n', total} or {}
end
return {'ok', current, nxt, entries[#entries][1], table.concat(hashes), more and 1 or 0, sums.err and {} or sums, cleared}
