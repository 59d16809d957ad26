// The runs that match a filter, as far as they are known here: fetched page by page, kept up to date by the feed, and
// fetched again where only the server can tell which runs match, or what became of them.

import { get, query } from "./api.js";
import { isOver } from "./orders.js";

/** @typedef {import("./types.js").RunLine} RunLine */
/** @typedef {{status: string, tool: string, session: string, text: string}} Filter */

const PAGE = 100;
const MOST = 1000; // runs that the server gives at once
const OFTEN = 1000; // milliseconds between two requests for what is new, at least
const STAY = 1000; // runs that stay while new ones come; more if the user has fetched more

export class Found {
  /**
   * @param {import("./app.js").App} app
   * @param {() => Filter} filter what is wanted now
   * @param {(isAnew: boolean) => void} draw called when there is something else to show, for another filter or the same
   * @param {AbortSignal} gone
   */
  constructor(app, filter, draw, gone) {
    this.app = app;
    this.filter = filter;
    this.draw = draw;
    /** @type {Map<string, RunLine>} */
    this.known = new Map();
    /** @type {string | null} */
    this.next = null; // the id before which older runs begin
    this.stay = STAY;
    this.loaded = false; // whether the server has answered
    this.loading = new AbortController();
    this.busy = false; // whether older runs are being fetched
    this.asked = 0;
    this.timer = 0;
    this.due = false; // whether to fetch again
    this.lost = false; // whether the last request had no answer: it is repeated until it has one, and reported once
    this.stale = false; // whether all known runs must be fetched again, not only the newest
    /** @type {Map<string, RunLine> | null} */
    this.fresh = null; // the runs that are being fetched again; what the feed says meanwhile is newer
    app.live.watch((changes) => this.changed(changes), gone);
    gone.addEventListener("abort", () => this.loading.abort());
  }

  /** The runs that match, the newest first. */
  lines() {
    const wanted = this.filter();
    const meant = [...this.known.values()].filter((run) => fits(run, wanted));
    return meant.sort((a, b) => b.created_at_ms - a.created_at_ms || (a.id < b.id ? 1 : -1));
  }

  /** Fetches the runs of another filter. */
  async load() {
    this.loading.abort();
    this.loading = new AbortController();
    this.busy = false;
    this.next = null;
    this.lost = false;
    this.asked = performance.now();
    const { signal } = this.loading;
    await this.insist(async () => {
      const page = await this.page("", signal);
      this.known = new Map(page.runs.map((run) => [run.id, run]));
      this.stay = STAY;
      this.next = page.next;
      this.loaded = true;
      this.stale = false;
      this.draw(true);
    });
    if (!this.lost || signal.aborted) return;
    this.known.clear(); // they belong to the previous filter
    this.loaded = false;
    this.draw(true);
  }

  /** Fetches older runs. */
  async more() {
    if (this.busy || this.next === null) return;
    this.busy = true;
    const { signal } = this.loading;
    await this.app.attempt(async () => {
      const page = await this.page(this.next ?? "", signal);
      for (const run of page.runs) if (!this.known.has(run.id)) this.known.set(run.id, run);
      this.next = page.next;
    });
    if (signal.aborted) return;
    this.busy = false;
    this.stay = Math.max(STAY, this.known.size);
    this.draw(false);
  }

  /** @param {import("./live.js").Changes} changes */
  changed(changes) {
    if (this.due) this.soon();
    if (!this.loaded || !(changes.runs.size || changes.all)) return;
    const wanted = this.filter();
    const plain = !wanted.tool && !wanted.text; // else only the server can tell whether a run matches
    let strange = changes.all;
    this.stale ||= changes.all;
    for (const id of changes.runs) {
      const run = this.app.live.shown.runs.get(id);
      if (!run) strange = this.stale = true; // more have changed than the picture holds
      else if (this.known.has(id) || (plain && fits(run, wanted))) {
        this.known.set(id, run);
        this.fresh?.set(id, run);
      } else if (!plain) strange = true;
    }
    if (this.known.size > 2 * this.stay) strange = this.stale = true; // the oldest go; the user may scroll to them again
    if (strange) this.soon();
    this.draw(false);
  }

  /** Fetches again soon. */
  soon() {
    this.due = true;
    if (this.timer) return;
    const wait = Math.max(0, this.asked + OFTEN - performance.now());
    this.timer = setTimeout(async () => {
      if (!this.held()) {
        this.due = false;
        this.asked = performance.now();
        await this.insist(() => this.again(this.stale, this.loading.signal));
        this.fresh = null;
      }
      this.timer = 0;
      if (this.due && !this.held() && !this.loading.signal.aborted) this.soon();
    }, wait);
  }

  /**
   * Fetches the newest runs, or, if *whole*, all down to the oldest known one, so that deleted runs disappear; but no more
   * than are to stay if there are too many.
   *
   * @param {boolean} whole
   * @param {AbortSignal} signal
   */
  async again(whole, signal) {
    const oldest = whole ? [...this.known.values()].reduce((least, run) => Math.min(least, run.created_at_ms), Infinity) : Infinity;
    const most = this.known.size > 2 * this.stay ? this.stay : Infinity;
    const limit = whole ? Math.max(PAGE, Math.min(this.known.size, MOST)) : PAGE;
    /** @type {Map<string, RunLine>} */
    const fresh = new Map();
    this.fresh = fresh;
    this.stale = false;
    let before = "";
    let reached = Infinity;
    do {
      const page = await this.page(before, signal, limit);
      for (const run of page.runs) if (!fresh.has(run.id)) fresh.set(run.id, run);
      reached = page.runs.at(-1)?.created_at_ms ?? reached;
      before = page.next ?? "";
    } while (before && reached > oldest && fresh.size < most);
    if (this.held()) {
      this.due = true;
      this.stale ||= whole;
      return;
    }
    this.known = whole ? fresh : new Map([...this.known, ...fresh]);
    if (whole) this.next = before || null;
    this.loaded = true;
    this.draw(false);
  }

  /**
   * Does *work*; if there is no answer, everything is fetched again soon.
   *
   * @param {() => Promise<void>} work
   */
  async insist(work) {
    this.lost = !(await this.app.attempt(work, this.lost));
    this.stale ||= this.lost;
    if (this.lost) this.soon();
  }

  /**
   * @param {string} before
   * @param {AbortSignal} signal
   * @param {number} limit
   * @returns {Promise<{runs: RunLine[], next: string | null}>}
   */
  page(before, signal, limit = PAGE) {
    return get(`/api/runs${query({ ...this.filter(), limit, before })}`, signal);
  }

  held() {
    return this.app.live.paused && this.loaded;
  }
}

/**
 * The status that is shown: a run whose process is gone is interrupted, whatever it was doing.
 *
 * @param {RunLine} run
 */
export function standing(run) {
  return run.interrupted && !isOver(run) ? "interrupted" : run.status;
}

/**
 * Whether a run matches, as far as the page can tell.
 *
 * @param {RunLine} run
 * @param {Filter} wanted
 */
function fits(run, wanted) {
  const meant = !wanted.status || (wanted.status === "interrupted" ? standing(run) === "interrupted" : run.status === wanted.status);
  return meant && (!wanted.session || run.session_id === wanted.session);
}
