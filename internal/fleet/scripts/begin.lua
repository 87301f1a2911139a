-- Acquires the lease of a value, if it is free ("ask"), or takes it from its holder ("drop", "keep"):
-- a load under way under another lease can then no longer be published. Holds stay.
-- KEYS    1 value, 2 lease; except for "ask" also 3... values of other schemas
-- ARGV    1 token, 2 life of the lease in ms, 3 "ask"; or "drop", which drops the values; or
--         "keep", which leaves the value in KEYS[1] until commit.lua replaces it, and returns
--         "held" if a writer holds the key; 4 the first 64 bytes of the value that the caller
--         has seen and rejected ("" if it saw none), 5 the largest length in bytes of a
--         value that it wants
-- Returns {"value", bytes}  ask: another caller has published a value meanwhile
--         {"long", bytes}   ask: the same, but the value is longer; its first 64 bytes
--         {"wait", ms}      ask: another caller has the lease for that long, unless it renews it
--         {"held", ms}      ask, keep: a writer holds the key: load, but do not publish. The first
--                           of its holds ends after at most that long
--         {"granted", n}    the caller has the lease
--         {"stands", n}     ask: the same, and the value that the caller has seen is still there
--         {"foreign", n}    no lease, because of a key of another type
--         where n is how many of the keys are of another type
-- If it is repeated with the same token, it grants again: a client may repeat a command
-- that got no reply.
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
if lease and left >= 0 then -- otherwise there is none, or one without a TTL, which none of our scripts writes
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
