-- Takes or renews the lease of a Rebuild.
-- KEYS  1 record, 2 lease
-- ARGV  1 header, 2 token, 3 life of the lease in ms, 4 age in ms
-- Gives {"mine", current} or {"held", current}, or {"lost"} if the record is gone or
-- another one is there, or {"fresh", current} if a Rebuild has put current in use less than
-- that age ago: then the lease stays as it is.
-- A Rebuild may take its lease again after it has expired, if no other Rebuild has it. A
-- generation that it had announced does not come back with the lease.
if redis.pcall('HGET', KEYS[1], 'header') ~= ARGV[1] then
  return {'lost'}
end
local current = redis.call('HGET', KEYS[1], 'current') or ''
if current ~= '' and tonumber(ARGV[4]) > 0 then
  local since = tonumber(redis.call('HGET', KEYS[1], 'since') or '')
  local age = since and now() - since
  if age and age >= 0 and age < tonumber(ARGV[4]) then
    return {'fresh', current}
  end
end
local holder = redis.pcall('GET', KEYS[2])
if type(holder) == 'table' then -- an error: somebody has made another type of it
  redis.call('DEL', KEYS[2])
  holder = false
end
if holder and holder ~= ARGV[2] then
  return {'held', current}
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return {'mine', current}
