-- Asks for the right to rebuild a value, or takes it from whoever has it: what is under way
-- under another lease cannot be published any more, and holds stay.
-- KEYS  1 value, 2 lease; to take it also 3... values of other schemas
-- ARGV  1 token, 2 life of the lease in ms, 3 "ask"; to take it "drop", which drops the
--       values, or "keep", which leaves its own to answer until commit.lua replaces it,
--       and gives way to a writer's hold; 4 the first 64 bytes of the value that the caller
--       has seen and rejected ("" if it saw none), 5 the length in bytes up to which
--       it wants the value
-- Gives {"value", bytes}  asked: somebody has published one meanwhile
--       {"long", bytes}   asked: something longer stands there; its first 64 bytes
--       {"wait", ms}      asked: another caller has the lease for that long, unless renewed
--       {"held", ms}      a writer holds the key: load, but do not publish. The first of
--                         its holds ends after that long, if not before
--       {"granted", n}    the lease is the caller's
--       {"stands", n}     asked: the same, and what the caller has seen is still there
--       {"foreign", n}    a key of another type stands in the way. n of the keys are such
-- Asked again with the same token, it grants again: a client may repeat what it
-- got no answer to.
local ask, foreign, granted = ARGV[3] == 'ask', 0, 'granted'
if ask then
  local found = ours(redis.pcall('GETRANGE', KEYS[1], 0, 63))
  if not found then
    return {'foreign', 1}
  elseif type(found) == 'string' and found ~= '' and found ~= ARGV[4] then
    local value = redis.call('GETRANGE', KEYS[1], 0, ARGV[5])
    if #value > tonumber(ARGV[5]) then
      return {'long', found}
    end
    return {'value', value}
  elseif found == ARGV[4] and found ~= '' then
    granted = 'stands'
  end
end

local left, lease = redis.call('PTTL', KEYS[2]), ours(redis.pcall('HGETALL', KEYS[2]))
if lease and lease.err then
  return lease
end
local at, token, _, first = 0, nil, nil, nil
if lease and left >= 0 then -- else there is none, or one without an end: not what we have left there
  at = now()
  token, _, first = read(lease, at)
end
if first and ARGV[3] ~= 'drop' then
  return {'held', first - at}
end
if not ask then
  foreign = drop({ARGV[3] == 'keep'}) -- first, so that a server without memory lets the rest through
elseif token and token ~= ARGV[1] then
  redis.call('HSET', KEYS[2], 'w', '1')
  return {'wait', left}
end
if not lease then
  return {'foreign', foreign + 1}
end
if left == -1 then
  redis.call('DEL', KEYS[2])
end
redis.call('HSET', KEYS[2], 't', ARGV[1])
redis.call('PEXPIRE', KEYS[2], math.max(left, tonumber(ARGV[2])))
return {granted, foreign}
