-- Notes that the snapshot in use cannot be read, or cannot be brought up to date.
-- KEYS  1 record
-- ARGV  1 header, 2 shape of the snapshot, 3 its pieces
-- Gives 1, or 0 if another one is in use.
local record = redis.pcall('HMGET', KEYS[1], 'header', 'shape', 'pieces')
if record[1] ~= ARGV[1] or record[2] ~= ARGV[2] or record[3] ~= ARGV[3] then
  return 0
end
redis.call('HSET', KEYS[1], 'damaged', 1)
return 1
