-- The rate: Bucket of guards/rate.py, and what it learns, guards/learning.py.

local MOST_LEFT = 64
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

local function configure(others) -- Bucket.configure: the bucket was filled under *others*, not under *terms*
  local before = learnt and learnt.rate or tonumber(string.match(others, '^%S+'))
  local text, left, count = call('HGET', MAIN, 'left'), {}, 0
  for each, at in pairs(text and unpacked(text) or {}) do
    if at > now then left[each], count = at, count + 1 end
  end
  if count >= MOST_LEFT then left = {} end
  if full_at > now then left[others] = full_at end
  local owed = max(0.0, full_at - now) * before
  if not least then learnt = nil end
  set_rate(learnt and max(least * per_second, min(per_second, before)) or per_second)
  full_at = max(now + min(owed, capacity) * interval, left[terms] or now)
  left[terms] = nil
  set('left', pack(left))
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

-- What was learnt when the tool's server refused calls: guards/learning.py. Created only if there is something to learn
-- or a rate to recover.
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
    if learnt and admitted_at <= learnt.cut_at then return pause(seconds) end
    if learnt then seconds = max(seconds, learnt.paused_until - now) end
    local refused = learnt and self.rate_now() or rate
    local owed = max(0.0, full_at - now) * rate
    set_rate(max(refused / 2, least * per_second))
    full_at = now + max(capacity, owed) * interval -- owed is more than capacity only if tokens were reserved
    learnt = cut(refused, rate, seconds, learnt)
    pause(seconds)
    made = true -- set expiries: a pause may be longer than the present ones
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

-- Bucket.admit: returns the wait, for how many attempts there are tokens, and full_at once these are taken.
local function ask_rate(cost, take)
  local function when(after) -- the time at which a call may be made after which the bucket is full at *after*
    return after - capacity * interval
  end
  local function early(after)
    return when(after) - max(ALMOST * interval, FUZZ) > now
  end
  local after = max(full_at, now) + cost * interval
  if learnt and early(after) then
    lessons.grow() -- too early at the rate last set, but perhaps not at the rate it has recovered to since
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
