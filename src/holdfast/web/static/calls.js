// Puts the events of a run together into calls: when each waited, which attempts it made, how it ended.
// Knows no page and no clock; the same events give the same calls, in whatever batches they arrive.

/** @typedef {import("./types.js").RunEvent} RunEvent */
/** @typedef {"wait" | "backoff" | "attempt"} BarKind */
/** @typedef {{kind: BarKind, from: number, to: number, outcome: string, number: number}} Bar */

/**
 * @typedef {object} Call
 * @property {number} sequence of its first event; identifies the call on this page
 * @property {"call" | "step" | "mark"} kind
 * @property {string} name
 * @property {number} depth
 * @property {number} at when its first attempt began
 * @property {number | null} end
 * @property {string} status running, success, failed, timed_out, cancelled, cached, denied, unknown or mark
 * @property {RunEvent[]} events
 * @property {Fail[]} fails
 * @property {{from: number, to: number}[]} lost attempts of a process that died
 * @property {Record<string, unknown>} facts of its end
 */

/** @typedef {{at: number, took: number | null, retry: number | null, category: string, error: string}} Fail */

const MARKS = new Set(["circuit_opened", "circuit_half_opened", "circuit_closed", "loop_detected", "budget_warning", "run_cancel_requested", "run_interrupted", "run_resumed", "run_diverged"]);
const TROUBLE = new Set(["failed", "timed_out", "denied", "unknown"]);

export class Calls {
  constructor() {
    /** @type {Call[]} */
    this.all = [];
    /** @type {RunEvent[]} */
    this.events = [];
    /** @type {Map<string, Call>} */
    this.open = new Map();
    /** @type {Map<string, Call>} */
    this.ids = new Map();
    /** @type {Map<number, Call>} */
    this.owners = new Map(); // the call of each event, by the event's sequence
    this.last = -1;
  }

  /**
   * Takes in events; those already known are skipped.
   *
   * @param {RunEvent[]} events
   */
  add(events) {
    for (const event of events) {
      if (event.sequence <= this.last) continue;
      this.last = event.sequence;
      this.events.push(event);
      if (!event.late) this.take(event);
    }
  }

  /** @param {RunEvent} event */
  take(event) {
    const { type } = event;
    if (type === "tool_started" || type === "step_started") this.start(event);
    else if (type === "tool_attempt_failed") this.fail(event);
    else if (type === "tool_ended" || type === "step_ended") this.finish(event);
    else if (type === "tool_denied") this.single(event, "call", "denied");
    else if (MARKS.has(type)) this.single(event, "mark", "mark");
    if (type === "run_interrupted") this.abandon(event.timestamp_ms);
  }

  /** @param {RunEvent} event */
  start(event) {
    const id = String(event.payload.call_id);
    const before = this.open.get(id);
    if (before) {
      before.lost.push({ from: before.at, to: before.end ?? event.timestamp_ms });
      before.at = event.timestamp_ms;
      before.end = null;
      before.status = "running";
      this.own(before, event);
      return;
    }
    const call = this.make(event, event.type === "step_started" ? "step" : "call", "running");
    this.open.set(id, call);
  }

  /** @param {RunEvent} event */
  fail(event) {
    const call = this.open.get(String(event.payload.call_id));
    if (!call) return;
    const { duration_ms: took, retry_in_ms: retry, category, error } = event.payload;
    call.fails.push({ at: event.timestamp_ms, took: known(took), retry: known(retry), category: word(category), error: word(error) });
    call.at = Math.min(call.at, event.timestamp_ms - number(took)); // the start may have been recorded with a delay
    this.own(call, event);
  }

  /** @param {RunEvent} event */
  finish(event) {
    const id = String(event.payload.call_id);
    const { payload } = event;
    let call = this.open.get(id);
    if (call) this.own(call, event);
    else call = this.make(event, event.type === "step_ended" ? "step" : "call", "success");
    call.end = event.timestamp_ms;
    if (!payload.cached && !call.fails.length) call.at = Math.min(call.at, call.end - number(payload.duration_ms)); // see fail
    call.status = payload.cached ? "cached" : word(payload.status) || "success";
    call.facts = payload;
    this.open.delete(id);
  }

  /**
   * @param {RunEvent} event
   * @param {Call["kind"]} kind
   * @param {string} status
   */
  single(event, kind, status) {
    const call = this.make(event, kind, status);
    call.end = event.timestamp_ms;
    call.facts = event.payload;
  }

  /** @param {number} at */
  abandon(at) {
    for (const call of this.open.values()) {
      call.end ??= at;
      call.status = "unknown";
    }
  }

  /**
   * @param {RunEvent} event
   * @param {Call["kind"]} kind
   * @param {string} status
   */
  make(event, kind, status) {
    const { payload } = event;
    const parent = this.ids.get(word(payload.parent));
    const name = kind === "mark" ? event.type : word(payload.tool) || word(payload.name) || event.type;
    /** @type {Call} */
    const call = {
      sequence: event.sequence, kind, name, depth: parent ? parent.depth + 1 : 0,
      at: event.timestamp_ms, end: null, status, events: [], fails: [], lost: [], facts: {},
    };
    if (typeof payload.call_id === "string") this.ids.set(payload.call_id, call);
    this.all.push(call);
    this.own(call, event);
    return call;
  }

  /**
   * @param {Call} call
   * @param {RunEvent} event
   */
  own(call, event) {
    call.events.push(event);
    this.owners.set(event.sequence, call);
  }

  /** The time of the last event. */
  end() {
    return this.events.at(-1)?.timestamp_ms ?? 0;
  }
}

/** @param {Call} call */
export function isTrouble(call) {
  return TROUBLE.has(call.status) || call.fails.length > 0;
}

/**
 * The bars of a call until *now*: the wait before its start, its attempts, and the waits between them.
 *
 * The log has the ends of attempts and the planned waits, not when a later attempt began: that is computed from the
 * time inside the tool, which a failed attempt's event has for that attempt, and the last event for all of them.
 *
 * @param {Call} call
 * @param {number} now
 * @returns {Bar[]}
 */
export function bars(call, now) {
  if (call.kind === "mark" || call.status === "cached" || call.status === "denied") return [];
  const until = call.end ?? now;
  const ended = call.end !== null && call.status !== "unknown";
  /** @type {Bar[]} */
  const made = call.lost.map(({ from, to }) => ({ kind: "attempt", from, to, outcome: "unknown", number: 0 }));
  let start = call.at;
  let between = 0;
  let inside = 0;
  let more = true;
  const fails = call.fails.filter((each) => each.at >= call.at);
  for (const [index, fail] of fails.entries()) {
    made.push({ kind: "attempt", from: start, to: fail.at, outcome: "failed", number: index + 1 });
    inside += fail.took ?? fail.at - start;
    const isLast = index === fails.length - 1;
    more = fail.retry !== null && !(isLast && ended && number(call.facts.attempts) <= fails.length);
    if (fail.retry === null || !more) break;
    const next = fails[index + 1];
    const bound = next?.at ?? until;
    const planned = Math.min(fail.at + fail.retry, bound);
    const took = next ? next.took : ended ? Math.max(0, number(call.facts.duration_ms) - inside) : null;
    const exact = took === null ? planned : bound - took;
    start = Math.min(Math.max(planned, exact), bound);
    made.push({ kind: "backoff", from: fail.at, to: planned, outcome: "", number: index + 1 });
    if (start - planned > 1) made.push({ kind: "wait", from: planned, to: start, outcome: "", number: index + 2 });
    between += start - fail.at;
  }
  if (more) made.push({ kind: "attempt", from: start, to: until, outcome: call.status, number: fails.length + 1 });
  const planned = call.fails.reduce((sum, fail) => sum + (fail.retry ?? 0), 0); // even if the next attempt was refused
  const line = number(call.facts.waited_ms) - Math.max(between, planned);
  if (line > 0.5) made.unshift({ kind: "wait", from: call.at - line, to: call.at, outcome: "", number: 1 });
  return made;
}

/**
 * From the first wait of a call to its end.
 *
 * @param {Call} call
 * @param {number} now
 * @returns {[number, number]}
 */
export function extent(call, now) {
  const drawn = bars(call, now);
  return [Math.min(call.at, drawn[0]?.from ?? call.at), call.end ?? now];
}

/** @param {unknown} value */
function word(value) {
  return typeof value === "string" ? value : "";
}

/** @param {unknown} value */
function number(value) {
  return known(value) ?? 0;
}

/** @param {unknown} value */
function known(value) {
  return typeof value === "number" ? value : null;
}
