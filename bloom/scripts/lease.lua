-- Takes or renews the lease of a Rebuild or of a compaction.
-- KEYS  1 record, 2 lease
-- ARGV  1 header, 2 token, 3 life of the lease in ms, 4 age in ms
-- Gives {"mine", shape, when the filter was last invalidated}
--       {"held", shape}   another process has the lease
--       {"lost"}          the record is gone or another one is there
--       {"fresh", shape}  a Rebuild has put the snapshot in use less than that age ago, and no
--                         process has found it damaged: the lease stays as it is
local record = redis.pcall('HMGET', KEYS[1], 'header', 'shape', 'since', 'damaged', 'invalid')
if record[1] ~= ARGV[1] then
  return {'lost'}
end
local shape, since = record[2] or '', tonumber(record[3] or '')
if shape ~= '' and since and not record[4] then
  local age = now() - since
  if age >= 0 and age < tonumber(ARGV[4]) then
    return {'fresh', shape}
  end
end
local holder = redis.pcall('GET', KEYS[2])
if type(holder) == 'string' and holder ~= ARGV[2] then
  return {'held', shape}
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {'mine', shape, record[5] or '0'}
