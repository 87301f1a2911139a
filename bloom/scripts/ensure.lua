-- Makes the record of a filter and its log where they are missing.
-- KEYS  1 record, 2 log, 3 checksums of the generation to begin with
-- ARGV  1 header to begin with, 2 life in ms, 3 corrupt header to replace ("" for none),
--       4 generation to begin with, which is empty ("" for none), then fields and
--       values of its checksums
-- Gives the header that is stored afterwards.
-- It replaces a record that is no hash, that has no header, or that has the corrupt one.
-- If a record or a log was there before, the new record has no generation, since nobody
-- knows which ids the old one held.
local header = redis.pcall('HGET', KEYS[1], 'header')
if type(header) ~= 'string' or header == ARGV[3] then
  local current = redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and ARGV[4] or ''
  redis.call('DEL', KEYS[1], KEYS[2])
  header = ARGV[1]
  if current ~= '' then
    for i = 5, #ARGV, 2 do
      redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
    end
    redis.call('PEXPIRE', KEYS[3], ARGV[2])
  end
  redis.call('HSET', KEYS[1], 'header', header, 'current', current, 'next', '', 'token', '')
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local length = redis.pcall('XLEN', KEYS[2])
if type(length) ~= 'number' or length == 0 then
  redis.call('DEL', KEYS[2])
  redis.call('XADD', KEYS[2], '*', 'begin', '') -- so that there always is a newest entry
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return header
