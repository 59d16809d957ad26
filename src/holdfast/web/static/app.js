// The page: its bar, its five screens and the way between them.

import { ApiError, isPassing, query } from "./api.js";
import { attr, button, fill, h } from "./dom.js";
import { said, visible, words } from "./format.js";
import { icon } from "./icons.js";
import { help, listen } from "./keys.js";
import { Live } from "./live.js";
import { worstFirst } from "./picture.js";
import { parse, toRun, toTool } from "./routes.js";
import { run } from "./run.js";
import { runs } from "./runs.js";
import { say, tell } from "./say.js";
import { servers } from "./servers.js";
import { tool } from "./tool.js";
import { tools } from "./tools.js";

/** @typedef {import("./types.js").Screen} Screen */
/** @typedef {import("./routes.js").Route} Route */
/** @typedef {(app: App, route: Route, gone: AbortSignal) => Screen} Maker the signal comes when another screen is shown */

const MAKERS = /** @type {Record<Route["screen"], Maker>} */ ({ tools, tool, runs, run, servers });
const ORDER = /** @type {const} */ (["tools", "tool", "runs", "run", "servers"]);
const TITLES = { tools: "Tools", tool: "Tool", runs: "Runs", run: "Run", servers: "Servers" };
const UP = /** @type {const} */ ({ tools: "tools", tool: "tools", runs: "runs", run: "runs", servers: "servers" });
const THEMES = ["auto", "light", "dark"];
const CALM = 5000; // milliseconds between two words on circuits
const STANDINGS = /** @type {Record<string, string>} */ ({ waiting: "reconnecting", troubled: "without its store", closed: "asleep" }); // the others as they are

class App {
  constructor() {
    this.live = new Live();
    /** @type {Screen | null} */
    this.screen = null;
    this.leaving = new AbortController();
    this.stood = ""; // what was last said of the feed
    /** @type {Map<string, string>} */
    this.turned = new Map(); // the states of the circuits that have changed, until they are said
    this.calming = 0; // the timer until the next may be said
    /** @type {Route} */
    this.route = parse(location.hash);
    this.places = { tools: "#/tools", tool: "", runs: "#/runs", run: "", servers: "#/servers" };
    this.main = /** @type {HTMLElement} */ (document.getElementById("main"));
    this.tabs = ORDER.map((name, index) => this.tab(name, index + 1));
    this.light = h("button", { type: "button", class: "standing" });
    this.light.addEventListener("click", () => (this.live.standing === "refused" ? this.live.retry() : this.live.pause()));
    this.themer = button({ class: "plain" }, () => this.theme());
  }

  start() {
    const bar = /** @type {HTMLElement} */ (document.getElementById("bar"));
    fill(
      bar,
      h("span", { class: "name" }, icon("holdfast"), h("b", {}, "Holdfast"), h("span", { class: "badge held" }, "read-only")),
      h("nav", { "aria-label": "Screens" }, ...this.tabs),
      h("span", { class: "tools" }, this.light, this.themer, button({ class: "plain", "aria-label": "Keys" }, help, h("kbd", { "aria-hidden": "true" }, "?"))),
    );
    this.theme(0);
    listen({
      screen: () => this.screen,
      go: (number) => this.go(number),
      pause: () => this.live.pause(),
      theme: () => this.theme(),
      up: () => (location.hash = this.places[UP[this.route.screen]]),
    });
    const skip = document.querySelector(".skip");
    skip?.addEventListener("click", (event) => {
      event.preventDefault(); // its address, #main, names no screen
      this.land();
    });
    addEventListener("hashchange", () => this.arrive());
    this.live.standers.add(() => this.stand());
    this.live.turners.add((turns) => {
      for (const { name, after } of turns) this.turned.set(name, after);
      if (!this.calming) this.announce();
    });
    this.live.watch(() => this.entitle());
    this.live.noted = (message) => tell(visible(message), "bad");
    this.stand();
    this.arrive();
    this.live.start();
  }

  /** Shows the screen that the address names. */
  arrive() {
    const before = this.route;
    this.route = parse(location.hash);
    const { screen, name } = this.route;
    this.places[screen] = location.hash || "#/tools";
    for (const [index, tab] of this.tabs.entries()) attr(tab, "aria-current", ORDER[index] === screen ? "page" : null);
    this.point();
    if (this.screen && before.screen === screen && before.name === name && this.screen.follow?.(this.route)) return;
    const isFirst = this.screen === null;
    this.leaving.abort();
    this.leaving = new AbortController();
    this.screen = MAKERS[screen](this, this.route, this.leaving.signal);
    fill(this.main, this.screen.root);
    this.main.scrollTop = 0;
    if (!isFirst) this.land();
    this.entitle();
  }

  /** Moves the focus to the content of the screen, so that keys scroll it; the element that had it may be gone. */
  land() {
    const content = this.main.querySelector(".scroll");
    if (content instanceof HTMLElement) content.focus({ preventScroll: true }); // does nothing while it is hidden
    if (document.activeElement !== content) this.main.focus({ preventScroll: true });
  }

  /**
   * Keeps the filter of a screen in its address, for when the user comes back to it.
   *
   * @param {"tools" | "runs" | "servers"} screen the one that is shown
   * @param {Record<string, string>} filter
   */
  note(screen, filter) {
    this.places[screen] = `#/${screen}${query(filter)}`;
    history.replaceState(null, "", this.places[screen]);
  }

  /** @param {number} number */
  go(number) {
    const place = this.place(ORDER[number - 1] ?? "tools");
    if (place) location.hash = place;
    else say("There is none yet");
  }

  /**
   * The address that a tab leads to; for Tool and Run, the last one shown, else the worst tool or the newest run.
   *
   * @param {Route["screen"]} name
   */
  place(name) {
    if (this.places[name]) return this.places[name];
    const { tools: lines, runs: moved } = this.live.shown;
    const [worst] = name === "tool" ? worstFirst(lines.values()) : [];
    if (worst) return toTool(worst.name);
    const newest = name === "run" ? [...moved.values()].sort((a, b) => b.created_at_ms - a.created_at_ms)[0] : undefined;
    return newest ? toRun(newest.id) : "";
  }

  /**
   * @param {Route["screen"]} name
   * @param {number} number
   */
  tab(name, number) {
    return h("a", { href: this.places[name] || "#/", class: name }, TITLES[name], h("kbd", { "aria-hidden": "true" }, number));
  }

  /** Sets the links of the tabs. */
  point() {
    for (const [index, tab] of this.tabs.entries()) {
      const place = this.place(ORDER[index] ?? "tools");
      attr(tab, "href", place || "#/");
      attr(tab, "aria-disabled", place ? null : "true");
    }
  }

  /** Says whether what is shown is live. */
  stand() {
    const { paused, standing, detail } = this.live;
    const shown = paused ? "paused" : (STANDINGS[standing] ?? standing);
    const does = standing === "refused" ? "try again" : paused ? "go on" : "pause";
    fill(this.light, h("span", { class: "dot" }), shown);
    attr(this.light, "class", `standing ${paused ? "paused" : standing}`);
    attr(this.light, "aria-label", `The page is ${shown}: ${does}`);
    attr(this.light, "title", standing === "refused" || standing === "troubled" ? detail : `${shown}; space: ${does}`);
    if (standing === "refused") tell(`The server refuses this page: ${detail}`, "bad");
    else if ((paused || standing === "live" || standing === "waiting") && this.stood !== shown) say(`The page is ${shown}`);
    if (standing !== "connecting") this.stood = shown; // each new try connects: that is no news
  }

  /** Says which circuits have changed: the first at once, the next a while later, since a circuit may change all the time. */
  announce() {
    const turns = this.live.paused ? [] : [...this.turned];
    this.turned.clear();
    this.calming = turns.length ? setTimeout(() => this.announce(), CALM) : 0;
    if (turns.length) say(turns.length > 3 ? `${turns.length} circuits changed` : turns.map(([name, after]) => `${words(name)}: circuit ${said(after)}`).join(", "));
  }

  entitle() {
    const refusing = [...this.live.shown.tools.values()].filter((line) => line.refuses).length;
    const { title } = this.screen ?? { title: "" };
    document.title = `${refusing ? `(${refusing} refusing) ` : ""}${title} · Holdfast`;
    this.point();
  }

  /**
   * Goes to the next theme; with 0 *steps*, only shows which it is.
   *
   * @param {number} [steps]
   */
  theme(steps = 1) {
    const root = document.documentElement;
    const at = THEMES.indexOf(root.dataset.theme ?? "auto");
    const next = THEMES[(at + steps) % THEMES.length] ?? "auto";
    root.dataset.theme = next;
    fill(this.themer, icon(next === "light" ? "sun" : next === "dark" ? "moon" : "auto"));
    attr(this.themer, "aria-label", `Theme: ${next}`);
    attr(this.themer, "title", `Theme: ${next} (t)`);
    if (steps === 0) return;
    say(`Theme: ${next}`);
    try {
      localStorage.setItem("holdfast.theme", next);
    } catch {
      // Storage is switched off: the choice lasts as long as the page.
    }
  }

  /**
   * Does *work*, and reports an error unless *quiet*; false if it is worth another try.
   *
   * @param {() => Promise<unknown>} work
   * @param {boolean} [quiet]
   */
  async attempt(work, quiet = false) {
    try {
      await work();
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return true;
      if (!quiet) tell(error instanceof ApiError ? error.message : "The server does not answer", "bad");
      return !isPassing(error);
    }
    return true;
  }
}

export { App };

new App().start();
