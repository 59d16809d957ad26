-- The guards of one tool for a whole fleet: tells what became of attempts, then admits one, on the server's time.
--
-- One call, in this order: settle the outcomes, renew the holder's lease, ask circuit, rate and concurrency. All of
-- them say yes, or nothing is taken. The decisions are those of guards/circuit.py, window.py, rate.py, learning.py and
-- concurrency.py (the fixed limit), operation by operation, so that both come to the same digits: whoever changes one
-- changes the other, and tests/fleet/test_script_*.py compare them.
--
-- KEYS, one hash tag, all gone after an idle hour or twice the longest time that the policy needs
--   1 main      hash  generation; circuit, learnt, window: msgpack, empty or missing while there is nothing to say;
--                     full_at and terms: the bucket, and the settings it was filled under; used: slots in use;
--                     touched: when the keys were last told to live on
--   2 failures  zset  what tells a failure apart -> when
--   3 window    list  of msgpack [begun, calls, failures, slow], oldest first; its sums are in main
--   4 holders   hash  holder -> slots it uses; used is their sum
--   5 leases    zset  holder -> until when its slots are believed without a sign of life
-- Times in there are seconds since EPOCH_US, so that a float tells nanoseconds apart; outside they are microseconds.
--
-- ARGV
--   1 now: empty, or microseconds (tests)          9 outcomes: empty, or msgpack [[holder, slots, refund, says, count,
--   2 holder                                         generation, probe, duration_us, sign, pause_us, admitted_at_us] …]
--   3 lease_us                                    10 cost: empty (nothing is asked), or tokens an attempt takes
--   4 breaker: empty, or msgpack, see settings()  11 take: attempts to take tokens for, as far as they are there
--   5 per_second: empty, or tokens a second       12 horizon_us: a token that comes by then is reserved
--   6 capacity  7 floor: empty if not adaptive    13 channel, told of each change of the circuit
--   8 limit: empty, or slots                      14 renew: empty, or the slots that the holder has once its outcomes
--                                                    are settled: put back if the server forgot them; "=n": exactly n
--                                                 15 random, 0 to 1
-- says: "" nothing (a probe is given back), "ok" (count times), "reset", or the category of a failure.
-- generation -1: told without a grant. A refund of tokens for several attempts has their number as count.
--
-- Reply: verdict, wait_us (-1: nobody knows), generation, probe (-1: none), taken, now_us, rate_permille or nil if it
-- was not cut, circuit or nil while it is as new: state, remaining_us, failures, backoff_us, times_opened, probes,
-- last_category, opened_at_us (-1: not open). An ask takes one slot, whatever take is.

local EPOCH_US = 1767225600000000
local CLOSED, OPEN, HALF_OPEN = 0, 1, 2
local ADMITTED, BY_CIRCUIT, BY_RATE, BY_CONCURRENCY, NOT_ASKED = 0, 1, 2, 3, 4
local ALMOST = 1e-6 -- tokens a bucket may lack
local FUZZ = 1e-8 -- seconds by which sums of floats may be off; they shall not make a wait a microsecond longer
local LONGEST_WAIT = 1e15 -- microseconds; what is longer is not told apart
local BACK = 5 -- seconds by which the server's clock may go back unnoticed
local TOUCH, IDLE, LONGEST_IDLE = 60, 3600, 1e8 -- seconds

local MAIN, FAILURES, WINDOW, HOLDERS, LEASES = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local holder, lease = ARGV[2], ARGV[3] / 1e6
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local huge, min, max, floor = math.huge, math.min, math.max, math.floor

local now_us = tonumber(ARGV[1])
if not now_us then
  local time = call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = (now_us - EPOCH_US) / 1e6

if ARGV[10] ~= '' and ARGV[6] ~= '' and tonumber(ARGV[10]) > tonumber(ARGV[6]) then
  return redis.error_reply('ERR a call of ' .. ARGV[10] .. ' tokens does not fit a bucket of ' .. ARGV[6])
end

local kept = call('HMGET', MAIN, 'generation', 'circuit', 'full_at', 'terms', 'learnt', 'used', 'touched')
local generation, used, touched = tonumber(kept[1]), tonumber(kept[6]) or 0, tonumber(kept[7])
local per_second, capacity, limit = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local asked, outcomes = ARGV[10] ~= '', ARGV[9] ~= '' and unpacked(ARGV[9]) or {}
local terms = ARGV[5] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7]

local function micros_until(when) -- whole microseconds, never so few that asking again then is too early
  if when <= now then return 0 end
  local wait = floor((when - now) * 1e6)
  if wait >= LONGEST_WAIT then return LONGEST_WAIT end
  while (now_us + wait - EPOCH_US) / 1e6 < when do wait = wait + 1 end
  return wait
end

-- ---- the usual case ------------------------------------------------------------------------------------------------
-- The circuit is as new, the rate was never cut, successes have nothing to tell, and there is room. Straight through,
-- as the functions below cost more to make than all of this; what it cannot answer it leaves to them, as it was.

repeat
  local young = touched and now - touched < TOUCH and now >= touched - BACK
  local calm = (kept[2] or '') == '' and (not per_second or (kept[4] == terms and (kept[5] or '') == ''))
  if not (young and calm) or ARGV[14] ~= '' then break end

  local back, told = 0, false
  for _, outcome in ipairs(outcomes) do
    told = told or outcome[4] ~= ''
    if outcome[1] ~= holder or outcome[3] > 0 or (outcome[4] ~= '' and outcome[4] ~= 'ok') then back = nil break end
    back = back + outcome[2]
  end
  if not back then break end
  if told and ARGV[4] ~= '' then
    local breaker = unpacked(ARGV[4])
    if breaker[12] or breaker[14] then break end -- successes count in its rates
  end

  local wait, full_at, take = 0, nil, asked and tonumber(ARGV[11]) or 0
  if asked and per_second then
    if take > 1 then break end
    local interval = 1.0 / per_second
    full_at = max(tonumber(kept[3]) or now, now) + ARGV[10] * interval
    if full_at - capacity * interval - max(ALMOST * interval, FUZZ) > now then
      wait = micros_until(full_at - capacity * interval - FUZZ)
      if wait > tonumber(ARGV[12]) then
        if back > 0 then break end
        do return { BY_RATE, wait, generation, -1, 0, now_us, false, false } end
      end
    end
  end
  local mine = asked and limit and 1 or 0
  if back > 0 then
    if (tonumber(call('HGET', HOLDERS, holder)) or 0) < back then break end
    mine = mine - back
  end
  if asked and limit and used + mine > limit then break end

  if mine ~= 0 and call('HINCRBY', HOLDERS, holder, mine) == 1 and call('ZADD', LEASES, now + lease, holder) == 1 then
    call('ZREM', LEASES, holder)
    call('HINCRBY', HOLDERS, holder, -mine)
    break -- a new holder
  end
  used = max(0, used + mine)
  if full_at and mine ~= 0 then
    call('HSET', MAIN, 'full_at', full_at, 'used', used)
  elseif full_at then
    call('HSET', MAIN, 'full_at', full_at)
  elseif mine ~= 0 then
    call('HSET', MAIN, 'used', used)
  end
  do return { asked and ADMITTED or NOT_ASKED, wait, generation, -1, take, now_us, false, false } end
until true

local changes, made, changed = {}, false, false -- fields of main to write; a new key; a change to publish

local function set(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

local function renew_generation() -- never one that was before, whatever was flushed or expired
  generation = max(now_us, (generation or 0) + 1)
  set('generation', generation)
end

if touched and now < touched - BACK then -- the clock went back: what is kept is of a time to come
  call('DEL', unpack(KEYS))
  kept, touched, used = {}, nil, 0
  renew_generation()
elseif not generation then
  renew_generation()
end

-- ---- the rate: Bucket of guards/rate.py ----------------------------------------------------------------------------

local least = tonumber(ARGV[7])
local full_at, rate, interval, learnt, spent, taught -- spent: full_at has changed; taught: learnt has

local function set_rate(new)
  rate, interval = new, 1.0 / new
end

local function pause(seconds) -- Bucket._pause
  if seconds > 0 then
    learnt.paused_until = max(learnt.paused_until, now + seconds)
    full_at = max(full_at, now + seconds + (capacity - 1.0) * interval)
  end
end

local function configure(terms) -- Bucket.configure: other settings than those the bucket was filled under
  local before = learnt and learnt.rate or tonumber(string.match(terms, '^%S+'))
  local owed = max(0.0, full_at - now) * before
  if not least then learnt = nil end
  set_rate(learnt and max(least * per_second, min(per_second, before)) or per_second)
  full_at = now + min(owed, capacity) * interval
  if learnt then pause(learnt.paused_until - now) end
  spent, taught = true, true
end

if per_second then
  full_at = tonumber(kept[3]) or -huge
  if kept[5] and kept[5] ~= '' then learnt = unpacked(kept[5]) end
  set_rate(learnt and learnt.rate or per_second)
  if kept[4] ~= terms then
    if kept[4] then configure(kept[4]) end
    set('terms', terms)
  end
end

-- What was learnt from the server's refusals: guards/learning.py. Made when there is something to learn or to recover.
local function learning()
  local QUICK, BELOW, SPELL, SPELL_CALLS, SPELL_PAUSES = 1.0, 0.97, 8.0, 50.0, 8.0
  local LONGEST_PAUSE, LONGEST_COUNTED, JITTER = 86400.0, 60.0, 0.1
  local SLOWEST, STEP, STEEPEST = 8.0, 1 / 64, 50.0

  local function cost_of(l)
    return l.calls > 0 and l.spent / l.calls or 1.0
  end

  local function allowed(l)
    local elapsed = now - l.paused_until
    if elapsed <= 0 then return l.half end
    local quick = max(now - max(l.proof or huge, l.paused_until), elapsed / SLOWEST) / QUICK
    if quick < 1.0 then return l.plateau - (l.plateau - l.half) * (1.0 - quick) ^ 3 end
    local used = max(min(l.used, elapsed), elapsed / SLOWEST) - QUICK
    if used <= 0 then return l.plateau end
    return l.plateau * math.exp(min(0.5 * (used / l.span) ^ 3, STEEPEST))
  end

  local function lesson(l, refused)
    if l.good == 0 or l.calls == 0 then return l.plateau end
    local elapsed = now - l.paused_until
    if l.lull or elapsed <= 0 then return refused * BELOW end
    local taken = (l.good + 1) * cost_of(l) / elapsed
    return (min(refused, max(taken, refused / 2)) + refused) / 2 * BELOW
  end

  local function cut(refused, half, seconds, last) -- Learnt.__init__
    local plateau = max(half, last and lesson(last, refused) or refused * BELOW)
    local span = SPELL + SPELL_CALLS / plateau + SPELL_PAUSES * min(seconds, LONGEST_COUNTED)
    return {
      cut_at = now, paused_until = now, calls = 0, spent = 0.0, good = 0, used = 0.0, lull = false, due = now,
      half = half, plateau = plateau, span = span, proof = (not last or last.good > 0) and now or nil,
    }
  end

  local self = {}

  function self.rate_now()
    return min(per_second, max(rate, allowed(learnt)))
  end

  function self.grow() -- Bucket._grow
    if now < learnt.due then return end
    learnt.due = now + STEP
    local grown = self.rate_now()
    if grown > rate then
      local owed = max(0.0, full_at - now) * rate
      set_rate(grown)
      full_at = now + owed * interval
    end
    if grown >= per_second and now >= learnt.paused_until then learnt = nil end
  end

  function self.succeeded(count)
    learnt.proof = min(learnt.proof or huge, now)
    learnt.good = learnt.good + count
    learnt.used = learnt.used + count * (cost_of(learnt) * interval)
    taught = true
  end

  function self.limited(retry_after, admitted_at) -- Bucket.limited
    local seconds = 0.0
    if retry_after > 0 then seconds = min(retry_after, LONGEST_PAUSE) * (1.0 + JITTER * tonumber(ARGV[15])) end
    spent, taught = true, true
    if learnt and admitted_at and admitted_at <= learnt.cut_at then return pause(seconds) end
    if learnt then seconds = max(seconds, learnt.paused_until - now) end
    local refused = learnt and self.rate_now() or rate
    local owed = max(0.0, full_at - now) * rate
    set_rate(max(refused / 2, least * per_second))
    full_at = now + max(capacity, owed) * interval -- owed is more only where tokens were reserved
    learnt = cut(refused, rate, seconds, learnt)
    pause(seconds)
    made = true -- a pause may be longer than the keys live
  end

  return self
end

local lessons = learnt and learning()

local function refund(tokens, attempts) -- Bucket.refund
  full_at = max(full_at - tokens * interval, now)
  spent = true
  if learnt and learnt.calls > 0 then
    local given = min(attempts, learnt.calls)
    learnt.calls = learnt.calls - given
    learnt.spent = learnt.spent - tokens * given / attempts
    taught = true
  end
end

-- Bucket.admit: how long to wait, for how many attempts there are tokens, and full_at once they are taken.
local function ask_rate(cost, take)
  local function when(after) -- may a call be made that leaves the bucket to be full then
    return after - capacity * interval
  end
  local function early(after)
    return when(after) - max(ALMOST * interval, FUZZ) > now
  end
  local after = max(full_at, now) + cost * interval
  if learnt and early(after) then
    lessons.grow() -- not yet at the rate of the last promise; perhaps at the one it has grown to since
    spent, taught = true, true
    after = max(full_at, now) + cost * interval
  end
  local paused_until = learnt and learnt.paused_until or -huge
  if early(after) or paused_until > now then return micros_until(max(when(after) - FUZZ, paused_until)), 1, after end
  if take == 1 then return 0, 1, after end
  local start, slack = max(full_at, now), max(ALMOST * interval, FUZZ)
  take = max(1, min(take, floor((now + capacity * interval + slack - start) / (cost * interval))))
  return 0, take, start + take * cost * interval
end

local function take_tokens(cost, attempts, after, wait) -- the rest of Bucket.admit
  if learnt then
    learnt.calls = learnt.calls + attempts
    learnt.spent = learnt.spent + attempts * cost
    if wait == 0 and now - full_at > interval then learnt.lull = true end
    taught = true
  end
  full_at, spent = after, true
  if learnt and wait == 0 then lessons.grow() end
end

-- ---- the circuit: guards/circuit.py, guards/window.py --------------------------------------------------------------

-- Window of guards/window.py, over *seconds* and at most *most* calls.
local function the_window(seconds, most)
  local self, sums = {}, nil

  local function load()
    if sums then return end
    local text = call('HGET', MAIN, 'window')
    sums = text and unpacked(text)
    if not sums or sums.seconds ~= seconds or sums.most ~= most then self.clear() end
  end

  local function drop(run)
    call('LPOP', WINDOW)
    sums.calls, sums.failures, sums.slow = sums.calls - run[2], sums.failures - run[3], sums.slow - run[4]
  end

  local function forget()
    local text = call('LINDEX', WINDOW, 0)
    while text do
      local run = unpacked(text)
      local surplus = most and sums.calls - most or 0
      if run[1] <= now - seconds or (surplus > 0 and run[2] <= surplus) then
        drop(run)
        text = call('LINDEX', WINDOW, 0)
      else
        if surplus > 0 then
          run[2], sums.calls = run[2] - surplus, sums.calls - surplus
          call('LSET', WINDOW, 0, pack(run))
        end
        return
      end
    end
  end

  function self.clear()
    call('DEL', WINDOW)
    sums = { calls = 0, failures = 0, slow = 0, seconds = seconds, most = most }
  end

  function self.add(calls, failures, slow)
    load()
    local last = call('LINDEX', WINDOW, -1)
    last = last and unpacked(last)
    if not last then self.clear() end -- also where the server evicted the list
    local apart = last and most and (failures > 0 or slow > 0 or last[3] > 0 or last[4] > 0)
    if not last or now - last[1] >= seconds / 20 or apart then
      made = call('RPUSH', WINDOW, pack({ now, calls, failures, slow })) == 1 or made
    else
      call('LSET', WINDOW, -1, pack({ last[1], last[2] + calls, last[3] + failures, last[4] + slow }))
    end
    sums.calls, sums.failures, sums.slow = sums.calls + calls, sums.failures + failures, sums.slow + slow
    forget()
  end

  function self.sums()
    load()
    return sums
  end

  function self.save()
    if sums then set('window', pack(sums)) end
  end

  return self
end

local function settings() -- BreakerConfig of guards/breaking.py
  local s = unpacked(ARGV[4])
  return {
    failure_threshold = s[1], min_backoff = s[2], max_backoff = s[3], backoff_factor = s[4], jitter = s[5],
    half_open_probes = s[6], probe_lease = s[7], successes_to_close = s[8], window = s[9], window_calls = s[10],
    trips = s[11], failure_rate = s[12], slow_call = s[13], slow_call_rate = s[14], judged_from = s[15],
    distinct_arguments = s[16],
  }
end

-- Circuit of guards/circuit.py. Made when it has something to say or is told something.
local function the_circuit(text)
  local MOST_SIGNS = 10000
  local config = settings()
  local c = text and unpacked(text)
    or { state = CLOSED, rung = 0, good = 0, opened = 0, last = '', probes = {}, numbers = 0, counted = 0 }
  local rated = config.failure_rate or config.slow_call_rate
  local window = rated and the_window(config.window, config.window_calls)
  local self, dirty = {}, false

  local function number()
    c.numbers, dirty = c.numbers + 1, true
    return c.numbers
  end

  local function trips(category)
    for _, one in ipairs(config.trips) do
      if one == category then return true end
    end
    return false
  end

  local function backoff()
    return min(config.min_backoff * config.backoff_factor ^ c.rung, config.max_backoff)
  end

  local function live() -- how many probes are out, and when the first lease ends
    local count, first = 0, huge
    for _, till in pairs(c.probes) do
      if till > now then count, first = count + 1, min(first, till) end
    end
    return count, first
  end

  local function shut_until()
    if c.state == OPEN then return c.open_until end
    if c.state == HALF_OPEN then
      local count, first = live()
      if count >= config.half_open_probes then return first end
    end
    return now
  end

  local function forget_failures()
    if c.counted > 0 then call('DEL', FAILURES) end
    c.counted = 0
  end

  local function renew()
    renew_generation()
    dirty, changed = true, true
  end

  local function open()
    local flaps = c.closed_at and now - c.closed_at <= config.max_backoff
    c.rung = (c.state == HALF_OPEN or flaps) and c.rung + 1 or 0
    c.state, c.opened_at, c.opened = OPEN, now, c.opened + 1
    c.open_until = now + backoff() * (1 + config.jitter * tonumber(ARGV[15]))
    c.probes, c.good = {}, 0
    renew()
  end

  local function clear()
    c.state, c.last, c.opened_at, c.closed_at, c.rung, c.good, c.probes = CLOSED, '', nil, nil, 0, 0, {}
    forget_failures()
    if window then window.clear() end
  end

  local function close()
    local rung = c.rung
    clear()
    c.rung, c.closed_at = rung, now
    renew()
  end

  local function rates_trip(failed)
    if not window then return false end
    local sums = window.sums()
    if sums.calls < config.judged_from then return false end
    if config.slow_call_rate and sums.slow / sums.calls >= config.slow_call_rate then return true end
    return failed and config.failure_rate and sums.failures / sums.calls >= config.failure_rate
  end

  local function count(sign)
    local apart = config.distinct_arguments and sign ~= ''
    call('ZADD', FAILURES, now, apart and '=' .. sign or '#' .. number())
    call('ZREMRANGEBYSCORE', FAILURES, '-inf', now - config.window)
    c.counted = call('ZCARD', FAILURES)
    if c.counted > MOST_SIGNS then call('ZREMRANGEBYRANK', FAILURES, 0, 0) end
    made = made or c.counted == 1
  end

  local function settle_closed(category, calls, duration, sign)
    local failed, slow = category ~= nil, config.slow_call and duration >= config.slow_call
    if not failed then
      forget_failures()
    elseif trips(category) then
      count(sign)
    else
      return
    end
    dirty = dirty or c.last ~= '' or failed
    c.last = category or ''
    if window then window.add(calls, failed and 1 or 0, slow and 1 or 0) end
    if c.counted >= config.failure_threshold or ((failed or slow) and rates_trip(failed)) then open() end
  end

  local function answers_probe(of, probe)
    if of < 0 then -- without a grant it answers the oldest
      for one, till in pairs(c.probes) do
        if till > now and (probe < 0 or one < probe) then probe = one end
      end
    elseif of ~= generation then
      return false
    end
    local till = c.probes[probe]
    if not till or till <= now then return false end
    c.probes[probe], dirty = nil, true
    return true
  end

  local function settle_probe(category)
    if not category then
      c.good = c.good + 1
      if c.good >= config.successes_to_close then close() end
    elseif trips(category) then
      c.last = category
      open()
    end
  end

  local function settle(category, calls, of, probe, duration, sign)
    if c.state == CLOSED then
      if of < 0 or of == generation then settle_closed(category, calls, duration, sign) end
    elseif c.state == HALF_OPEN and answers_probe(of, probe) then
      settle_probe(category)
    end
  end

  function self.tell(says, calls, of, probe, duration, sign)
    if says == '' then
      if of == generation and c.probes[probe] then c.probes[probe], dirty = nil, true end
    elseif says == 'reset' then
      clear()
      renew()
    elseif says ~= 'ok' then
      settle(says, 1, of, probe, duration, sign)
    elseif config.slow_call and duration >= config.slow_call then
      for _ = 1, calls do settle(nil, 1, of, probe, duration, sign) end -- one of them may open it
    else
      settle(nil, calls, of, probe, duration, sign)
    end
  end

  function self.wait()
    return micros_until(shut_until())
  end

  function self.closed()
    return c.state == CLOSED
  end

  function self.probe(wait) -- the attempt is made after the wait, so its lease begins then
    changed = changed or c.state ~= HALF_OPEN
    c.state = HALF_OPEN
    local probe = number()
    c.probes[probe] = now + wait / 1e6 + config.probe_lease
    return probe
  end

  function self.look() -- Circuit.look
    local is_closed = c.state == CLOSED
    local failures = c.counted > 0
      and call('ZCOUNT', FAILURES, string.format('(%.17g', now - config.window), '+inf') or 0
    local opened_at = is_closed and -1 or floor(c.opened_at * 1e6 + EPOCH_US + 0.5)
    local nominal = is_closed and 0 or floor(backoff() * 1e6 + 0.5)
    return { c.state, micros_until(shut_until()), failures, nominal, c.opened, (live()), c.last, opened_at }
  end

  function self.as_new()
    return c.state == CLOSED and c.opened == 0 and c.counted == 0 and c.last == ''
  end

  function self.save()
    if dirty then
      for probe, till in pairs(c.probes) do
        if till <= now then c.probes[probe] = nil end
      end
      set('circuit', self.as_new() and '' or pack(c))
    end
    if window then window.save() end
  end

  return self
end

-- ---- concurrency: the fixed limit of guards/concurrency.py ---------------------------------------------------------

local used_before, held = used, nil -- held: slots of the holder itself, where they were looked up

local function purge() -- the slots of holders whose lease is over; who asks is alive
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

local function live_on() -- renew the holder's lease; when it is a new one, look who has gone
  if call('ZADD', LEASES, now + lease, holder) == 1 then
    made = true
    purge()
  end
end

local function give_back(who, slots) -- one that was purged or flushed has nothing to give
  local left = call('HINCRBY', HOLDERS, who, -slots)
  if left < 0 then
    call('HDEL', HOLDERS, who)
    slots = slots + left
  end
  used = used - slots
end

local function renew(text)
  local exact = string.match(text, '^=(%d+)$')
  local believed = tonumber(exact or text)
  local known = tonumber(call('HGET', HOLDERS, holder))
  if (exact and known ~= believed) or (not known and believed > 0) then
    call('HSET', HOLDERS, holder, believed)
    used = used + believed - (known or 0)
  end
  if known or believed > 0 then live_on() end
end

local function balance() -- once a minute: a server that evicts keys may have taken one from under the others
  used = 0
  local all = call('HGETALL', HOLDERS)
  for i = 1, #all, 2 do
    used = used + all[i + 1]
    if not call('ZSCORE', LEASES, all[i]) then call('ZADD', LEASES, now + lease, all[i]) end
  end
end

local old = not touched or now - touched >= TOUCH
if old and limit then balance() end

-- ---- settle --------------------------------------------------------------------------------------------------------

local circuit
if ARGV[4] ~= '' and kept[2] and kept[2] ~= '' then circuit = the_circuit(kept[2]) end

local function tell_rate(says, count, pause_us, admitted_at_us)
  if says == 'ok' then
    if learnt then lessons.succeeded(count) end
  elseif says == 'rate_limit' then
    lessons = lessons or learning()
    lessons.limited(pause_us / 1e6, admitted_at_us >= 0 and (admitted_at_us - EPOCH_US) / 1e6 or nil)
  end
end

local given = {}
for _, outcome in ipairs(outcomes) do
  local who, slots, tokens, says, count, of, probe, duration_us, sign, pause_us, admitted_at_us = unpack(outcome)
  if slots > 0 then given[who] = (given[who] or 0) + slots end
  if tokens > 0 and per_second then refund(tokens, max(1, count)) end
  if says ~= '' and ARGV[4] ~= '' then circuit = circuit or the_circuit() end
  if circuit then circuit.tell(says, count, of, probe, duration_us / 1e6, sign) end
  if least then tell_rate(says, count, pause_us, admitted_at_us) end
end
for who, slots in pairs(given) do
  if who == holder and limit and asked and ARGV[14] == '' then -- it may take one at once: written together, below
    held = tonumber(call('HGET', HOLDERS, holder)) or 0
    given[who] = min(slots, held)
    used = used - given[who]
  else
    give_back(who, slots)
  end
end
if ARGV[14] ~= '' then renew(ARGV[14]) end

-- ---- admit ---------------------------------------------------------------------------------------------------------

local verdict, wait, probe, taken = NOT_ASKED, 0, -1, 0

local function admit(cost, take, horizon)
  local after, before
  wait = circuit and circuit.wait() or 0
  if wait > 0 then return BY_CIRCUIT end
  if circuit and not circuit.closed() then take = 1 end -- a probe is one attempt
  if per_second then
    if learnt then before = { pack(learnt), full_at, rate, spent, taught } end
    wait, take, after = ask_rate(cost, take)
    if wait > horizon then return BY_RATE end
  end
  if limit and used >= limit then
    purge()
    if used >= limit then
      if before then
        learnt, full_at, spent, taught = unpacked(before[1]), before[2], before[4], before[5]
        set_rate(before[3])
      end
      wait = -1
      return BY_CONCURRENCY
    end
  end
  if per_second then take_tokens(cost, take, after, wait) end
  if circuit and not circuit.closed() then probe = circuit.probe(wait) end
  taken = take
  return ADMITTED
end

if asked then verdict = admit(tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])) end

local mine = held and -given[holder] or 0
if verdict == ADMITTED and limit then
  mine, used = mine + 1, used + 1
end
if mine ~= 0 and call('HINCRBY', HOLDERS, holder, mine) == 1 and verdict == ADMITTED then live_on() end

-- ---- write, publish, answer ----------------------------------------------------------------------------------------

local function life() -- seconds for which the keys must outlive the last call
  local needed = lease
  if ARGV[4] ~= '' then
    local config = settings()
    needed = max(needed, config.window, config.max_backoff * 2, config.probe_lease)
  end
  if per_second then
    needed = max(needed, capacity / ((least or 1) * per_second), full_at - now)
    if learnt then needed = max(needed, learnt.paused_until - now) end
  end
  return min(max(IDLE, 2 * needed), LONGEST_IDLE)
end

if old or made then set('touched', now) end
if spent then set('full_at', full_at) end
if taught then
  if learnt then learnt.rate = rate end
  set('learnt', learnt and pack(learnt) or '')
end
if used ~= used_before then set('used', max(0, used)) end
if circuit then circuit.save() end
if #changes > 0 then call('HSET', MAIN, unpack(changes)) end
if old or made then
  local lives = floor(life() * 1000)
  for _, key in ipairs(KEYS) do call('PEXPIRE', key, lives) end
end
if changed then call('PUBLISH', ARGV[13], pack({ MAIN, generation, circuit.look() })) end

local rate_permille, shown = false, false
if learnt then rate_permille = floor(lessons.rate_now() * 1000 + 0.5) end
if circuit and not circuit.as_new() then shown = circuit.look() end
return { verdict, wait, generation, probe, taken, now_us, rate_permille, shown }
