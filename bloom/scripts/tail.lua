-- Reads the log after the entry that the caller knows, and the record at the same moment.
-- KEYS  1 record, 2 log
-- ARGV  1 header, 2 the newest entry that the caller knows, 3 how many entries to read, 4 what
--       entry 2 holds ("": the caller does not know)
-- Gives {"lost"}  the record is gone, or another one is there
--       {"ok", shape, pieces, at, last, damaged, entry, hashes, 1 if there are more, when
--       the filter was last invalidated}: fields of the record, the newest entry that was read,
--       and the hashes in the log up to it
--       {"gap", …}  the same, but the log does not go on from the entry that the caller knows
-- The log goes on from an entry if it still has that entry, if the numbers of all later
-- entries have no gap, and if it ends with the newest entry of the record. Otherwise it was
-- cut off, or has another history since a failover that lost writes.
local record = redis.pcall('HMGET', KEYS[1], 'header', 'shape', 'pieces', 'at', 'last', 'damaged', 'invalid')
if record[1] ~= ARGV[1] then
  return {'lost'}
end
local entries, hashes, kind = redis.pcall('XRANGE', KEYS[2], ARGV[2], '+', 'COUNT', ARGV[3] + 1), {}, 'ok'
for i = 2, #entries do
  hashes[i - 1] = entries[i][2][2] -- XRANGE gives {id, {field, value}}
  if #hashes[i - 1] ~= 16 then
    kind = 'gap'
  end
end
local entry, more = '', #entries > tonumber(ARGV[3])
if #entries > 0 then
  entry = entries[#entries][1]
end
if #entries == 0 or entries[1][1] ~= ARGV[2] or ARGV[4] ~= '' and entries[1][2][2] ~= ARGV[4] or number(entry) - number(ARGV[2]) ~= #hashes or not more and entry ~= record[5] then
  kind = 'gap'
end
return {kind, record[2] or '', record[3] or '', record[4] or '', record[5] or '', record[6] or '', entry, table.concat(hashes), more and 1 or 0, tonumber(record[7] or '') or 0}
