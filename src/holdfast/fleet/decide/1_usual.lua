-- The guards of one tool for a whole fleet: settles the outcomes of attempts, then admits one, by the server's clock.
--
-- One call of the script does, in this order: settle the outcomes, renew the holder's lease, ask circuit, rate and
-- concurrency. If one of them refuses, nothing is taken. The decisions are those of guards/circuit.py, window.py,
-- rate.py, learning.py and concurrency.py (the fixed limit), operation by operation, so that both compute the same
-- digits: always change both; tests/fleet/test_script_*.py compare them.
-- The files of this folder are one script, joined in the order of their numbers: each uses what earlier ones define.
--
-- KEYS, all with one hash tag; they expire after an idle hour or, if longer, twice the longest time the policy needs
--   1 main      hash  generation; circuit, learnt, window: msgpack, empty or missing while they are as new;
--                     full_at and terms: the bucket, and the settings it was filled under; left: msgpack of terms ->
--                     full_at, for earlier settings; used: slots in use;
--                     touched: when the expiry of the keys was last set
--   2 failures  zset  the sign or number of a failure -> when it happened
--   3 window    list  of msgpack [begun, calls, failures, slow], oldest first; its sums are in main
--   4 holders   hash  holder -> slots it uses; used is their sum
--   5 leases    zset  holder -> when its lease ends; without a sign of life its slots are then free
-- Times in the keys are seconds since EPOCH_US, so that a float tells nanoseconds apart; those in ARGV and in the reply
-- are microseconds.
--
-- ARGV
--   1 now: empty, or microseconds (tests)          9 outcomes: empty, or msgpack [[holder, slots, refund, says, count,
--   2 holder                                         generation, probe, duration_us, sign, pause_us, admitted_at_us] …]
--   3 lease_us                                    10 cost: empty (nothing is asked), or tokens an attempt takes
--   4 breaker: empty, or msgpack, see settings()  11 take: attempts to take tokens for, as far as there are tokens
--   5 per_second: empty, or tokens a second       12 horizon_us: a token that is due within this time is reserved
--   6 capacity  7 floor: empty if not adaptive    13 channel: gets each change of the circuit, and its first failure,
--   8 limit: empty, or slots; 0 gives none           because from then on processes must report successes
--                                                 14 renew: empty, or the slots that the holder has once its outcomes
--                                                    are settled: put back if Redis forgot them; "=n": set to n;
--                                                    "?": only try whether all keys can be used
--                                                 15 random, 0 to 1
-- says: "" nothing (a probe is given back), "ok" (count times), "reset", or the category of a failure.
-- generation -1: reported without a grant; admitted_at_us -1: admitted its duration ago. If tokens of several attempts
-- are refunded, count is the number of these attempts.
--
-- Reply: verdict, wait_us (-1: unknown), generation, probe (-1: none), taken, now_us, rate_permille (nil if it was not
-- cut), circuit (nil while it is as new): state, remaining_us, failures, backoff_us, times_opened, probes,
-- last_category, opened_at_us (-1: not open). A question takes one slot, whatever take is. If nothing is asked and a
-- lease is renewed, taken is how many slots the holder has.

local EPOCH_US = 1767225600000000
local CLOSED, OPEN, HALF_OPEN = 0, 1, 2
local ADMITTED, BY_CIRCUIT, BY_RATE, BY_CONCURRENCY, NOT_ASKED = 0, 1, 2, 3, 4
local ALMOST = 1e-6 -- tokens that a bucket may lack when it admits an attempt
local FUZZ = 1e-8 -- seconds by which sums of floats may be off; this must not make a wait a microsecond longer
local LONGEST_WAIT = 1e15 -- microseconds; longer waits are given as this
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
if limit == 0 then limit = -huge end -- no slot is given, however few are counted as used
local asked, outcomes = ARGV[10] ~= '', ARGV[9] ~= '' and unpacked(ARGV[9]) or {}
local terms = ARGV[5] .. ' ' .. ARGV[6] .. ' ' .. ARGV[7]

local function micros_until(when) -- whole microseconds, rounded up so that asking again after them is not too early
  if when <= now then return 0 end
  local wait = floor((when - now) * 1e6)
  if wait >= LONGEST_WAIT then return LONGEST_WAIT end
  while (now_us + wait - EPOCH_US) / 1e6 < when do wait = wait + 1 end
  return wait
end

-- ---- the usual case ------------------------------------------------------------------------------------------------
-- The circuit is as new, the rate was not cut, successes need not be counted, and there is room. No functions here:
-- creating those below costs more than all of this. What this part cannot answer is left to them, with nothing changed.

repeat
  local young = generation and touched and now - touched < TOUCH and now >= touched - BACK
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
    if breaker[12] or breaker[14] then break end -- failure_rate or slow_call_rate: successes count
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

  local left = mine ~= 0 and call('HINCRBY', HOLDERS, holder, mine)
  if left == 1 and asked and limit and call('ZADD', LEASES, now + lease, holder) == 1 then
    call('ZREM', LEASES, holder)
    call('HINCRBY', HOLDERS, holder, -mine)
    break -- a new holder: see live_on()
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

local changes, made, changed = {}, false, false -- fields of main to write; set expiries?; publish the circuit?

local function set(field, value)
  changes[#changes + 1] = field
  changes[#changes + 1] = value
end

local function renew_generation() -- never a number that was used before, even after a flush or an expiry
  generation = max(now_us, (generation or 0) + 1)
  set('generation', generation)
end

if touched and now < touched - BACK then -- the clock went back: the times in the keys are in the future
  call('DEL', unpack(KEYS))
  kept, touched, used = {}, nil, 0
  renew_generation()
elseif not generation then
  renew_generation()
end
