-- Makes the record of a filter and its log, where they are missing.
-- KEYS  1 record, 2 log, 3 sums of the generation to begin with
-- ARGV  1 header to begin with, 2 life in ms, 3 header that makes no sense ("" for
--       none), 4 generation to begin with, in which nothing is set ("" for none), then
--       fields and values of its sums
-- Gives the header that stands. A record that is not a hash, or has no header or
-- that one, makes place. Where anything was before, there is no generation to begin
-- with: it is not known what it held.
local header = redis.pcall('HGET', KEYS[1], 'header')
if type(header) ~= 'string' or header == ARGV[3] then
  local current = redis.call('EXISTS', KEYS[1], KEYS[2]) == 0 and ARGV[4] or ''
  redis.call('DEL', KEYS[1], KEYS[2])
  header = ARGV[1]
  for i = 5, current == '' and 0 or #ARGV, 2 do
    redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
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
