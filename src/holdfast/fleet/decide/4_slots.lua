-- Concurrency: the fixed limit of guards/concurrency.py, and the holders of its slots.

local used_before = used

local function purge() -- free the slots of holders whose lease is over; this holder is alive: its own is renewed first
  call('ZADD', LEASES, 'XX', now + lease, holder)
  repeat
    local gone = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 100)
    for _, who in ipairs(gone) do
      used = used - (tonumber(call('HGET', HOLDERS, who)) or 0)
      call('HDEL', HOLDERS, who)
      call('ZREM', LEASES, who)
    end
  until #gone < 100
end

local function live_on() -- renew the holder's lease; a new holder also purges those that are gone
  if call('ZADD', LEASES, now + lease, holder) == 1 then
    made = true
    purge()
  end
end

local function rest() -- slots in use that no holder accounts for, because Redis evicted HOLDERS
  local left = used
  for _, slots in ipairs(call('HVALS', HOLDERS)) do left = left - slots end
  return max(0, left)
end

local function give_back(who, slots, known) -- a purged holder has none to give back; an evicted one has slots of rest()
  if slots > known then
    used = used - min(slots - known, rest())
    call('HDEL', HOLDERS, who)
  else
    call('HINCRBY', HOLDERS, who, -slots)
  end
  used = used - min(slots, known)
end

local function balance() -- recount: a Redis that evicts keys may have removed one of KEYS and kept the others
  used = 0
  local all = call('HGETALL', HOLDERS)
  for i = 1, #all, 2 do
    used = used + all[i + 1]
    if not call('ZSCORE', LEASES, all[i]) then call('ZADD', LEASES, now + lease, all[i]) end
  end
end

local function renew(text)
  local exact = string.match(text, '^=(%d+)$')
  local believed = tonumber(exact or text)
  local known = tonumber(call('HGET', HOLDERS, holder))
  if (exact and (known or 0) ~= believed) or (not known and believed > 0) then
    local more = believed - (known or 0)
    used = used + more - max(0, min(more, rest())) -- slots of rest() are counted already
    call('HSET', HOLDERS, holder, believed)
  end
  if known or believed > 0 then live_on() end
  return not exact and known or believed
end

local function try() -- fail where a question or an outcome would: by a key of another type; `old` makes it write, too
  call('ZCARD', FAILURES)
  call('LLEN', WINDOW)
  call('HLEN', HOLDERS)
  call('ZCARD', LEASES)
  return 0
end

local old = not touched or now - touched >= TOUCH or ARGV[14] == '?' -- once a minute, and when a tool is back
if old and limit then balance() end
