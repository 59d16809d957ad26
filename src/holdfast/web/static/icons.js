// The shapes that stand beside colours, so that no user needs to tell red from green.

import { s } from "./dom.js";

/** @type {Record<string, string>} */
const PATHS = {
  closed: "M8 3a5 5 0 1 0 0 10a5 5 0 0 0 0-10Z",
  half_open: "M8 3a5 5 0 0 0 0 10ZM8 3a5 5 0 0 1 0 10v-1a4 4 0 0 0 0-8Z",
  open: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  off: "M4 8h8",
  check: "M3 8.5l3.3 3.3L13 5",
  cross: "M4 4l8 8M12 4l-8 8",
  play: "M5 3.2v9.6L12.6 8Z",
  ring: "M8 3.5a4.5 4.5 0 1 0 0 9a4.5 4.5 0 0 0 0-9Z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  stop: "M3.5 8a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0M5 11l6-6",
  diamond: "M8 2.5l5.5 5.5L8 13.5L2.5 8Z",
  clock: "M8 2.8a5.2 5.2 0 1 0 0 10.4a5.2 5.2 0 0 0 0-10.4ZM8 5v3.2l2.2 1.4",
  flag: "M4.5 14V2.5h7.5L10 5.5l2 3H4.5",
  turn: "M12.8 6.5A5 5 0 1 0 13 9.3M13 3v3.6H9.4",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 0 0 0-5.6ZM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
  moon: "M12.8 9.8A5.3 5.3 0 0 1 6.2 3.2A5.3 5.3 0 1 0 12.8 9.8Z",
  auto: "M8 2.5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 0 0 0-11ZM8 2.5v11A5.5 5.5 0 0 0 8 2.5Z",
  holdfast: "M4 2v12M12 2v12M4 8h2.4M9.6 8H12M6.4 5.8v4.4M9.6 5.8v4.4",
};

const FILLED = new Set(["closed", "play", "half_open", "diamond"]);

/** @type {Record<string, {shape: string, tone: string}>} */
const MEANINGS = {
  closed: { shape: "closed", tone: "good" },
  half_open: { shape: "half_open", tone: "warn" },
  open: { shape: "open", tone: "bad" },
  off: { shape: "off", tone: "dim" },
  created: { shape: "ring", tone: "dim" },
  planning: { shape: "play", tone: "live" },
  executing: { shape: "play", tone: "live" },
  verifying: { shape: "play", tone: "live" },
  running: { shape: "play", tone: "live" },
  completed: { shape: "check", tone: "good" },
  success: { shape: "check", tone: "good" },
  failed: { shape: "cross", tone: "bad" },
  timed_out: { shape: "clock", tone: "bad" },
  cancelled: { shape: "stop", tone: "dim" },
  interrupted: { shape: "pause", tone: "warn" },
  cached: { shape: "diamond", tone: "dim" },
  denied: { shape: "stop", tone: "warn" },
  unknown: { shape: "pause", tone: "warn" },
  mark: { shape: "flag", tone: "dim" },
  ready: { shape: "check", tone: "good" },
  starting: { shape: "ring", tone: "live" },
  restarting: { shape: "turn", tone: "warn" },
  stopped: { shape: "off", tone: "dim" },
};

/** @param {string} shape */
export function icon(shape) {
  const path = s("path", { d: PATHS[shape] ?? PATHS.ring });
  return s("svg", { class: FILLED.has(shape) ? "icon filled" : "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, path);
}

/**
 * The tone of a state: good, warn, bad, live or dim.
 *
 * @param {string} state
 */
export function tone(state) {
  return MEANINGS[state]?.tone ?? "dim";
}

/**
 * The shape of a state.
 *
 * @param {string} state
 */
export function sign(state) {
  return icon(MEANINGS[state]?.shape ?? "ring");
}
