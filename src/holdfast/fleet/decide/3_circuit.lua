-- The circuit: guards/circuit.py and guards/window.py.

-- Window of guards/window.py, over *seconds* and at most *most* calls.
local function the_window(seconds, most)
  local self, sums = {}, nil

  local function load()
    if sums then return end
    local text = call('HGET', MAIN, 'window')
    sums = text and unpacked(text)
    if not sums then self.clear() end
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
      local whole = run[2] <= surplus or run[3] + run[4] > 0 -- processes that count by time alone merge failures
      if run[1] <= now - seconds or (surplus > 0 and whole) then
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
    sums = { calls = 0, failures = 0, slow = 0 }
  end

  function self.add(calls, failures, slow)
    load()
    local last = call('LINDEX', WINDOW, -1)
    last = last and unpacked(last)
    if not last then self.clear() end -- also if Redis evicted the list
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

-- Circuit of guards/circuit.py. Created only if it is not as new, or if an outcome tells it something.
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
    local first = c.counted == 1
    made, changed = made or first, changed or first -- from now on processes must report successes
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
    if of < 0 then -- an outcome without a grant answers the oldest probe
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
      for _ = 1, calls do settle(nil, 1, of, probe, duration, sign) end -- each may open the circuit
    else
      while of < 0 and calls > 1 and c.state == HALF_OPEN and next(c.probes) do -- each answers the oldest probe
        settle(nil, 1, of, probe, duration, sign)
        calls = calls - 1
      end
      settle(nil, calls, of, probe, duration, sign)
    end
  end

  function self.wait()
    return micros_until(shut_until())
  end

  function self.closed()
    return c.state == CLOSED
  end

  function self.probe(wait) -- the attempt is made after the wait, so the lease begins then
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
