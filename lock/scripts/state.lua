-- The state of the lock, for the scripts that include this. A value of another type
-- stops the script here, before anything is written.
local found = redis.call('HMGET', record, 'o', 'x', 'l', 'f', 'b', 'q', 'lr', 'd', 'fu')
local owner, ends, length = found[1] or '', tonumber(found[2] or 0), tonumber(found[3] or 0)
local fence, born = tonumber(found[4] or 0), tonumber(found[5] or 0)
local queued, released, done, forced = found[6], found[7], tonumber(found[8] or 0), found[9]
local known = found[4]
if not (ends and length and fence and born and done) or 0 * (ends + length + fence + born + done) ~= 0 then -- inf, nan
  return redis.error_reply('WRONGTYPE not a record of a lock')
elseif not known and redis.call('EXISTS', record, queue or record) > 0 then
  if redis.call('EXISTS', record) == 1 then
    return redis.error_reply('WRONGTYPE not a record of a lock')
  end
  queued = '1' -- the record was evicted, and the queue was not
end

-- A step back of the server's clock must not make a lease longer than it was.
local stepped = owner ~= '' and ends - now > length
if stepped then
  ends = now + length
end

