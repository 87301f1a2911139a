-- Reads the log after the entry that the caller knows, and the state of the filter at
-- the same moment.
-- KEYS  1 record, 2 log, 3 checksums of the generation that the caller asks for
-- ARGV  1 header, 2 the newest entry that the caller knows ("" for none: it only wants to
--       know the newest), 3 how many entries to read, 4 "all" for all checksums, "total"
--       for the number of set bits
-- Gives {"lost"}  the record is gone, or another one is there
--       {"gap", current, next}  the log has no such entry (any more), or is damaged after it
--       {"ok", current, next, newest entry read, hashes, 1 if there are more entries,
--        checksums: a flat list of fields and values, empty if there are none,
--        removals: a flat list of how many of the hashes come before, the generation, and
--        the positions}
-- The log must still have the entry that the caller knows. If it has not, it was cut off
-- after that entry, or has another history since a failover that lost writes.
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
local hashes, removals = {}, {}
for i = 2, #entries do
  local field, value = entries[i][2][1], entries[i][2][2] -- XRANGE gives {id, {field, value, …}}
  if field == 'h' then
    if #value ~= 16 then
      return {'gap', current, nxt} -- damaged; the table has what the log should say
    end
    hashes[#hashes + 1] = value
  elseif field == 'c' then
    removals[#removals + 1] = tostring(#hashes)
    removals[#removals + 1] = value
    removals[#removals + 1] = entries[i][2][4] or ''
  end
end
local more = ARGV[2] ~= '' and #entries > tonumber(ARGV[3])
local checksums
if ARGV[4] == 'all' then
  checksums = redis.pcall('HGETALL', KEYS[3])
else
  local total = redis.pcall('HGET', KEYS[3], 'n')
  checksums = type(total) == 'string' and {'n', total} or {}
end
return {'ok', current, nxt, entries[#entries][1], table.concat(hashes), more and 1 or 0, checksums.err and {} or checksums, removals}
