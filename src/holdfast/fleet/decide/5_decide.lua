-- Settle the outcomes, admit the attempt that is asked for, write what has changed, publish it and answer.

-- ---- settle --------------------------------------------------------------------------------------------------------

local circuit
if ARGV[4] ~= '' and kept[2] and kept[2] ~= '' then circuit = the_circuit(kept[2]) end

local function tell_rate(says, count, duration, pause_us, admitted_at_us)
  if says == 'ok' then
    if learnt then lessons.succeeded(count) end
  elseif says == 'rate_limit' then
    lessons = lessons or learning()
    lessons.limited(pause_us / 1e6, admitted_at_us >= 0 and (admitted_at_us - EPOCH_US) / 1e6 or now - duration)
  end
end

local given = {}
for _, outcome in ipairs(outcomes) do
  local who, slots, tokens, says, count, of, probe, duration_us, sign, pause_us, admitted_at_us = unpack(outcome)
  if slots > 0 then given[who] = (given[who] or 0) + slots end
  if tokens > 0 and per_second then refund(tokens, max(1, count)) end
  if says ~= '' and ARGV[4] ~= '' then circuit = circuit or the_circuit() end
  if circuit then circuit.tell(says, count, of, probe, duration_us / 1e6, sign) end
  if least then tell_rate(says, count, duration_us / 1e6, pause_us, admitted_at_us) end
end
local mine = 0 -- change in the holder's own slots: those given back and taken are written together, below
for who, slots in pairs(given) do
  local known = tonumber(call('HGET', HOLDERS, who)) or 0
  if who == holder and slots <= known and limit and asked and ARGV[14] == '' then
    mine, used = -slots, used - slots
  else
    give_back(who, slots, known)
  end
end
local renewed = ARGV[14] == '?' and try() or ARGV[14] ~= '' and renew(ARGV[14]) or 0

-- ---- admit ---------------------------------------------------------------------------------------------------------

local verdict, wait, probe, taken = NOT_ASKED, 0, -1, renewed

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
