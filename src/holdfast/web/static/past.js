// The events of one run, as far back as the user wants to see them: the last ones first, earlier ones on demand.
// They are fetched by their sequences, without gaps, so nothing is lost and nothing comes twice. Of a run that goes on
// and on, the oldest are let go again, so that the page stays fast and small.

import { get, query } from "./api.js";
import { Calls } from "./calls.js";
import { encoded } from "./routes.js";

/** @typedef {import("./types.js").RunEvent} RunEvent */
/** @typedef {import("./types.js").EventPage} EventPage */

export const PAGE = 1000;
const FOLLOWED = 5000; // events that stay while new ones come; more if the user has fetched more
const MOST = 500_000; // events that a page shows; more rows than twice as many would be higher than a browser can scroll

export class Past {
  /**
   * @param {string} id of the run
   * @param {AbortSignal} gone
   */
  constructor(id, gone) {
    this.id = id;
    this.gone = gone;
    this.calls = new Calls();
    this.kept = 0; // the first event that the store still has
    this.stay = FOLLOWED; // how many events stay while new ones come
    this.reaching = false;
    this.isBehind = false; // whether new events wait until the user is at the end
  }

  /** The sequence of the first event that is here. */
  get oldest() {
    return this.calls.events[0]?.sequence ?? this.kept;
  }

  /** The sequence of the first event that can be here. */
  get least() {
    return Math.max(this.kept, this.calls.last + 1 - MOST);
  }

  /** Whether earlier events can be fetched. */
  get isPart() {
    return this.oldest > this.least;
  }

  /**
   * Takes in the events that came since, up to the *total*; only the last ones the first time, and if there are very many.
   * For a user who is not at the end (*follows* is false) nothing is let go; after many new events the rest wait.
   *
   * @param {number} total
   * @param {boolean} follows
   */
  async later(total, follows) {
    const most = 2 * this.stay;
    this.isBehind = !follows && this.calls.events.length >= most;
    if (this.isBehind || this.reaching) return;
    if (this.calls.last < 0 || (follows && total - this.calls.last > most)) {
      this.calls = new Calls();
      this.calls.last = Math.max(-1, total - 1 - PAGE);
    }
    while (this.take(await this.page(this.calls.last, PAGE)) && this.calls.last < total - 1 && (follows || this.calls.events.length < most));
    if (follows && this.calls.events.length > most) this.anew(this.calls.events.slice(-this.stay));
  }

  /**
   * Takes in earlier events, from *sequence* on; false if another such call is under way.
   *
   * @param {number} sequence
   */
  async reach(sequence) {
    if (this.reaching) return false;
    this.reaching = true;
    try {
      /** @type {RunEvent[]} */
      const found = [];
      let last = Math.max(this.least, sequence) - 1;
      while (last < this.oldest - 1) {
        const page = await this.page(last, Math.min(PAGE, this.oldest - 1 - last));
        if (!page.events.length) break;
        for (const event of page.events) found.push(event);
        last = page.events.at(-1)?.sequence ?? last;
      }
      this.anew(found, this.calls.events);
      this.stay = Math.max(this.stay, this.calls.events.length);
      return true;
    } finally {
      this.reaching = false;
    }
  }

  /**
   * Puts calls together again, of other events.
   *
   * @param {...RunEvent[]} parts
   */
  anew(...parts) {
    this.calls = new Calls();
    for (const events of parts) this.calls.add(events);
  }

  /**
   * @param {number} after
   * @param {number} limit
   * @returns {Promise<EventPage>}
   */
  async page(after, limit) {
    const page = await get(`/api/runs/${encoded(this.id)}/events${query({ after, limit })}`, this.gone);
    this.kept = page.first_available ?? 0;
    return page;
  }

  /**
   * Takes in the events of a page; true if there are later ones.
   *
   * @param {EventPage} page
   */
  take(page) {
    this.calls.add(page.events);
    return page.has_more && page.events.length > 0;
  }
}
