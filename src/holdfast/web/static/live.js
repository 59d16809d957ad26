// The page's end of the feed: the picture that is shown, the watchers that hear of its changes, and the pause.

import { Feed } from "./feed.js";
import { Picture } from "./picture.js";

/** @typedef {import("./picture.js").Told} Told */
/** @typedef {import("./types.js").ToolLine} ToolLine */
/** @typedef {{tools: Set<string>, runs: Set<string>, servers: boolean, all: boolean}} Changes */
/** @typedef {{name: string, before: string, after: string}} Turn */

const SAMPLES = 60; // values of calls a second, one taken each second
const TICK = 1000;
const STALE = 3500; // milliseconds without news of a tool; while it is called, there is news every second

export class Live {
  constructor() {
    this.latest = new Picture();
    this.shown = this.latest;
    this.feed = "connecting"; // the state of the feed
    this.standing = "connecting"; // the same as it is shown: live only once everything has arrived
    this.detail = "";
    this.trouble = ""; // why the server cannot read the store
    /** @type {() => void} */
    this.knows = () => {};
    /** Resolves once the server has said whether anything may be changed here, or cannot be asked. */
    this.told = new Promise((resolve) => (this.knows = () => resolve(true)));
    this.paused = false;
    /** @type {Map<string, number[]>} */
    this.samples = new Map();
    /** @type {Set<(changes: Changes) => void>} */
    this.watchers = new Set();
    /** @type {Set<() => void>} */
    this.standers = new Set();
    /** @type {Set<(turns: Turn[]) => void>} */
    this.turners = new Set();
    this.changes = nothing();
    this.due = false;
  }

  /** Starts listening to the feed, while the page is visible. */
  start() {
    const post = this.connect();
    const look = () => post(document.hidden ? "away" : "look");
    document.addEventListener("visibilitychange", look);
    addEventListener("pagehide", () => {
      post("bye");
      this.keep();
    });
    addEventListener("pageshow", (event) => event.persisted && look());
    setInterval(() => this.sample(), TICK);
    this.retry = () => post("look");
    this.recall();
    look();
  }

  /**
   * Called with what the server wants the user to know; the app replaces it.
   *
   * @param {string} _message
   */
  noted(_message) {}

  /** Tries again after the server has refused; `start` replaces it. */
  retry() {}

  /**
   * A function that says whether the page is visible, to a worker that all tabs share or to a feed of this page alone.
   *
   * @returns {(word: string) => void}
   */
  connect() {
    if (typeof SharedWorker === "function") {
      const worker = new SharedWorker("/static/shared.js", { type: "module", name: "holdfast" });
      worker.port.onmessage = ({ data }) => {
        if (data.told) this.take(data.type, data.told);
        else this.stand(data.standing, data.detail);
      };
      return (word) => worker.port.postMessage(word);
    }
    const feed = new Feed(
      "/api/stream",
      (message) => this.take(message.type, JSON.parse(message.data)),
      (standing, detail) => this.stand(standing, detail),
    );
    return (word) => (word === "look" ? feed.start() : feed.stop());
  }

  /**
   * @param {string} type
   * @param {Told} told
   */
  take(type, told) {
    const trouble = type === "note" ? (told.code === "store" ? (told.message ?? "") : this.trouble) : "";
    if (trouble !== this.trouble) {
      this.trouble = trouble;
      this.stand(this.feed, "");
    }
    if (type === "note") return this.noted(told.message ?? "");
    const turns = this.turns(told);
    this.latest.take(type, told);
    const { changes } = this;
    if (type === "hello") {
      changes.all = true;
      document.documentElement.toggleAttribute("data-read-only", this.latest.readOnly);
      this.knows();
      this.stand(this.feed, this.detail);
    }
    for (const line of told.tools ?? []) changes.tools.add(line.name);
    for (const name of told.gone ?? []) changes.tools.add(name);
    for (const run of told.runs ?? []) changes.runs.add(run.id);
    if (told.servers) changes.servers = true;
    if (turns.length) for (const turned of this.turners) turned(turns);
    this.soon();
  }

  /**
   * The circuits that change their state with this message, which is not yet taken in.
   *
   * @param {Told} told
   */
  turns(told) {
    /** @type {Turn[]} */
    const turns = [];
    for (const line of told.tools ?? []) {
      const before = this.latest.tools.get(line.name)?.state;
      if (before !== undefined && before !== line.state) turns.push({ name: line.name, before, after: line.state });
    }
    return turns;
  }

  /**
   * @param {string} standing
   * @param {string} detail
   */
  stand(standing, detail) {
    this.feed = standing;
    if (standing === "waiting" || standing === "refused") this.knows();
    const told = standing === "live" ? this.trouble : "";
    const shown = told ? "troubled" : standing === "live" && !this.latest.complete ? "connecting" : standing;
    const why = told || detail;
    if (shown === this.standing && why === this.detail) return;
    this.standing = shown;
    this.detail = why;
    for (const stander of this.standers) stander();
  }

  /** Tells the watchers with the next frame, once for all that has come until then. */
  soon() {
    if (this.due || this.paused) return;
    this.due = true;
    requestAnimationFrame(() => {
      this.due = false;
      if (!this.paused) this.tell();
    });
  }

  tell() {
    const { changes } = this;
    this.changes = nothing();
    for (const watcher of [...this.watchers]) watcher(changes);
  }

  /** Holds the picture still, or lets it go on. */
  pause() {
    this.paused = !this.paused;
    this.shown = this.paused ? this.latest.copy() : this.latest;
    if (!this.paused) this.soon();
    for (const stander of this.standers) stander();
  }

  /**
   * Calls *watcher* with changes, at most once a frame, until *gone*.
   *
   * @param {(changes: Changes) => void} watcher
   * @param {AbortSignal} [gone]
   */
  watch(watcher, gone) {
    this.watchers.add(watcher);
    gone?.addEventListener("abort", () => this.watchers.delete(watcher));
  }

  /**
   * Does *work* again and again until *gone*, but not while the page is paused.
   *
   * @param {number} often in milliseconds
   * @param {() => void} work
   * @param {AbortSignal} gone
   */
  every(often, work, gone) {
    const timer = setInterval(() => this.paused || work(), often);
    gone.addEventListener("abort", () => clearInterval(timer));
  }

  /** The time of the server, in milliseconds since the epoch. */
  now() {
    return this.latest.now();
  }

  /**
   * Milliseconds since the last news of a tool.
   *
   * @param {string} name
   */
  since(name) {
    return this.latest.since(name);
  }

  /**
   * Calls a second of a tool, now.
   *
   * @param {ToolLine} line
   */
  speed(line) {
    return this.since(line.name) > STALE ? 0 : (line.calls_per_second ?? 0);
  }

  /** Records how many calls a second each tool has. */
  sample() {
    for (const [name, line] of this.latest.tools) {
      const samples = this.samples.get(name) ?? [];
      samples.push(this.speed(line));
      if (samples.length > SAMPLES) samples.shift();
      this.samples.set(name, samples);
    }
    if (!this.latest.complete) return;
    for (const name of this.samples.keys()) if (!this.latest.tools.has(name)) this.samples.delete(name);
  }

  /** Keeps the samples for a page that is loaded again. */
  keep() {
    try {
      sessionStorage.setItem("holdfast.samples", JSON.stringify({ at: Date.now(), samples: [...this.samples] }));
    } catch {
      // No storage, or none left: then the sparklines begin anew.
    }
  }

  /** Restores the samples of the page from before it was reloaded. */
  recall() {
    try {
      const kept = JSON.parse(sessionStorage.getItem("holdfast.samples") ?? "{}");
      const missed = Math.round((Date.now() - kept.at) / TICK);
      if (!(missed < SAMPLES)) return;
      for (const [name, samples] of kept.samples) this.samples.set(name, [...samples, ...Array(missed).fill(0)].slice(-SAMPLES));
    } catch {
      this.samples.clear();
    }
  }
}

/** @returns {Changes} */
function nothing() {
  return { tools: new Set(), runs: new Set(), servers: false, all: false };
}
