// The screen Run: what one run did and does, over time and in words. New events are fetched whenever the feed says that
// there are more, old ones when the user scrolls to them; not all are kept, see past.js.

import { get, isPassing } from "./api.js";
import { isTrouble } from "./calls.js";
import { attr, button, fill, h, hide, renew, text } from "./dom.js";
import { age, since } from "./draw.js";
import { standing } from "./found.js";
import { count, moment, oneLine, plural, span, start, visible, words } from "./format.js";
import { Log, block, detail } from "./log.js";
import { cancelRun, isOver } from "./orders.js";
import { excuse, fact, filterControls, isUnknown, show } from "./parts.js";
import { PAGE, Past } from "./past.js";
import { encoded, toRun } from "./routes.js";
import { copy, say } from "./say.js";
import { Waterfall } from "./waterfall.js";

/** @typedef {import("./app.js").App} App */
/** @typedef {import("./types.js").RunLine} RunLine */
/** @typedef {import("./types.js").Screen} Screen */

const GROW = 200; // milliseconds between two steps of a running bar
const CALM = 1000; // the same for users who want less motion
const LOOK = 5000; // milliseconds after which an unfinished or unanswered run is fetched without news of it
const REST = 3; // times as long as it took to fetch and draw news, the page rests before it does so again
const AGE = 1000; // milliseconds between two updates of how long ago it began

/**
 * @param {App} app
 * @param {import("./routes.js").Route} route
 * @param {AbortSignal} gone
 * @returns {Screen}
 */
export function run(app, route, gone) {
  const { name: id } = route;
  let { sequence } = route;
  const past = new Past(id, gone);
  const selected = () => (sequence === null ? null : (past.calls.owners.get(sequence)?.sequence ?? sequence));
  const more = () => past.isPart && void reach(past.oldest - PAGE);
  const falls = new Waterfall(id, selected, gone, more);
  const log = new Log(id, () => sequence, gone, more);
  /** @type {RunLine | null} */
  let line = null;
  let resume = "";
  let fetching = false;
  let again = false;
  let due = false; // whether there is more than what is shown
  /** @type {number | null} */
  let revealed = null;
  let from = 0; // the first event that is drawn

  const state = h("span", { class: "state big" });
  const title = h("bdi", {}, "…");
  const figures = h("dl", { class: "figures" });
  const texts = h("div", { class: "texts" });
  const wanted = filterControls(draw, { placeholder: "Filter calls", label: "Filter calls by name", only: "Failed only", found: () => plural(falls.rows.items.length, "call") });
  const stop = button({ class: "danger", hidden: true, title: "X" }, () => line && void cancelRun(app, line), "Cancel run…");
  const out = h("a", { class: "button", href: `/api/runs/${encoded(id)}/export`, download: `run-${id.replace(/[^\w.-]/g, "_").slice(0, 60)}.jsonl`, title: "All events as JSON lines (e)" }, "Export");
  const again_ = button({ class: "resume", hidden: true, title: "Copies the command that goes on with it (y)" }, () => void copy(resume), "Copy resume command");
  const filters = h("span", { class: "filters" }, ...wanted.filters, again_, out, stop);
  const head = h("header", { class: "head" }, h("h1", {}, h("span", { class: "kind" }, "Run "), title), state, filters);
  const loaded = h("span");
  const all = button({ class: "small" }, () => void loadAll(), "Load all");
  const part = h("p", { class: "part", hidden: true }, loaded, all);
  const place = h("div", { class: "chosen" });
  const empty = h("div", { class: "empty" }, h("p", {}, "Waiting for the server…"));
  const side = h("div", { class: "side" }, place, h("h2", { class: "unseen" }, "Events"), log.root);
  const view = h("div", { class: "split", hidden: true }, falls.root, side);
  const root = h("section", { class: "screen run" }, head, figures, texts, part, view, empty);

  async function load() {
    if (fetching) {
      again = true;
      return;
    }
    fetching = true;
    try {
      do {
        again = false;
        const began = performance.now();
        const answer = await get(`/api/runs/${encoded(id)}`, gone);
        await past.later(answer.run.event_count, atEnd());
        line = answer.run;
        resume = answer.resume ?? "";
        due = held();
        if (!due) draw();
        await rest(Math.min(AGE, REST * (performance.now() - began)));
      } while (again);
    } catch (problem) {
      due = held() || isPassing(problem);
      if (!gone.aborted && !held()) trouble(problem);
    }
    fetching = false;
  }

  /**
   * Shows earlier events as well, from an event on.
   *
   * @param {number} first
   */
  async function reach(first) {
    try {
      if (!(await past.reach(first))) return;
      draw();
      if (line && past.calls.last < line.event_count - 1) void load(); // meanwhile there were new ones
    } catch (problem) {
      due ||= isPassing(problem);
    }
  }

  async function loadAll() {
    text(loaded, "Fetching the events before these…");
    say("Fetching the events");
    await reach(0);
    if (!past.isPart) say(`${plural(past.calls.events.length, "event")} shown`);
  }

  /** @param {unknown} problem */
  function trouble(problem) {
    fill(empty, ...excuse(problem, "No run of this id is in the store.", h("a", { href: "#/runs" }, "All runs")));
    if (isUnknown(problem)) vanish();
    attr(empty, "hidden", !view.hidden);
  }

  /** Clears the screen, since the run is gone. */
  function vanish() {
    line = null;
    resume = "";
    text(title, oneLine(id, 60));
    for (const each of [state, figures, texts]) fill(each);
    texts.dataset.of = "";
    for (const each of [view, part, filters]) attr(each, "hidden", true);
  }

  const held = () => app.live.paused && !view.hidden;
  const atEnd = () => log.rows.atEnd() && falls.rows.atEnd();
  const zero = () => line?.started_at_ms ?? past.calls.events[0]?.timestamp_ms ?? line?.created_at_ms ?? 0;
  const live = () => line !== null && !isOver(line) && !line.interrupted;
  const until = () => (live() ? app.live.now() : Math.max(past.calls.end(), line?.finished_at_ms ?? 0));

  /** Shows everything; what is in sight stays where it is. */
  function draw() {
    if (past.oldest === from) present();
    else log.rows.hold(() => falls.rows.hold(present));
    from = past.oldest;
    choose();
  }

  function present() {
    if (!line) return;
    const { calls, isPart } = past;
    if (!live() && calls.last >= line.event_count - 1) calls.abandon(calls.end());
    attr(empty, "hidden", true);
    for (const each of [view, filters]) attr(each, "hidden", false);
    text(title, line.prompt ? oneLine(line.prompt, 120) : oneLine(id, 60));
    show(state, standing(line), "state big");
    hide(stop, isOver(line), out);
    hide(again_, !resume, out);
    renew(figures, facts(line, past.kept));
    const key = JSON.stringify([line.error, line.result_text, resume]);
    if (texts.dataset.of !== key) fill(texts, ...said(line)); // only if changed: what is unfolded stays so
    texts.dataset.of = key;
    hide(part, past.oldest === past.kept && !past.isBehind, falls.root);
    text(loaded, coverage());
    hide(all, !isPart, falls.root);
    falls.set(calls, calls.all.filter((call) => wanted.takes(call.name, isTrouble(call))), { zero: zero(), from: isPart ? (calls.events[0]?.timestamp_ms ?? zero()) : zero(), now: until(), atEnd: live() || isPart });
    log.set(calls.events, zero(), live() || isPart);
  }

  /** Which of the events are here. */
  function coverage() {
    const { events } = past.calls;
    if (past.isBehind) return `${plural(events.length, "event")}; newer ones come when you are at the end of both lists.`;
    return `The last ${plural(events.length, "event")}; ${past.isPart ? "scroll up for earlier ones." : "the export has all of them."}`;
  }

  /** Shows the selected call or event. */
  function choose() {
    if (!line) return;
    const { calls } = past;
    if (sequence !== null && sequence < past.oldest && sequence === revealed) return; // let go while the user looks at it
    if (sequence !== null && sequence >= past.least && sequence < past.oldest) void reach(sequence - PAGE / 2);
    const event = sequence === null ? undefined : calls.events[sequence - (calls.events[0]?.sequence ?? 0)];
    attr(place, "hidden", event === undefined);
    const key = event ? `${event.sequence} ${calls.owners.get(event.sequence)?.events.length}` : "";
    if (place.dataset.of !== key) {
      const hadFocus = place.contains(document.activeElement);
      fill(place, event ? detail(calls.owners.get(event.sequence), event, app.live.now(), close) : null);
      if (hadFocus && event) place.querySelector("button")?.focus({ preventScroll: true });
      else if (hadFocus && revealed !== null && !falls.rows.land(calls.owners.get(revealed)?.sequence ?? revealed)) log.rows.land(revealed);
    }
    place.dataset.of = key;
    if (event && revealed !== sequence) {
      falls.rows.show(selected() ?? event.sequence);
      log.rows.show(event.sequence);
    }
    revealed = event ? sequence : null;
  }

  function close() {
    location.hash = toRun(id);
  }

  const rest = (/** @type {number} */ milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

  /** @param {import("./live.js").Changes} changes */
  function changed(changes) {
    if (due || changes.all || changes.runs.has(id)) void load();
  }

  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  app.live.watch(changed, gone);
  app.live.every(still ? CALM : GROW, () => live() && !document.hidden && falls.grow(until()), gone);
  app.live.every(LOOK, () => !document.hidden && (due || line === null || !isOver(line)) && void load(), gone);
  app.live.every(AGE, () => age(figures, app.live.now()), gone);
  app.live.every(AGE, () => past.isBehind && atEnd() && void load(), gone);
  void load();
  return {
    title: `Run ${oneLine(id, 20)}`,
    root,
    search: wanted.search,
    failed: wanted.failed,
    move: (delta) => (side.contains(document.activeElement) ? log.rows : falls.rows).move(delta),
    actions: {
      X: () => line && void cancelRun(app, line),
      e: () => out.click(),
      y: () => (resume ? void copy(resume) : say("There is nothing to resume")),
    },
    back() {
      if (sequence === null) return wanted.back();
      close();
      return true;
    },
    follow(to) {
      ({ sequence } = to);
      falls.rows.refresh();
      log.rows.refresh();
      choose();
      return true;
    },
  };

  /**
   * @param {RunLine} run
   * @param {number} lost
   */
  function facts(run, lost) {
    const now = app.live.now();
    const began = run.started_at_ms ?? run.created_at_ms;
    /** @type {[string, ...(string | Node)[]][]} */
    const pairs = [
      ["Id", run.id],
      ["Session", oneLine(run.session_id, 60)],
      [run.started_at_ms === null ? "Created" : "Began", `${moment(began, now)}, `, since(began, now)],
      ["Took", isOver(run) ? span((run.finished_at_ms ?? run.updated_at_ms) - began) : run.interrupted ? "interrupted" : run.status === "created" ? "has not begun" : "still running"],
      ["Calls", count(run.tool_calls)],
      ["Failed", count(run.tool_failures)],
      ["Refused", count(run.tool_denials)],
      ["From cache", count(run.cached_hits)],
      ["Events", count(run.event_count)],
    ];
    for (const [unit, amount] of Object.entries(run.spend)) pairs.push([`Spent, ${oneLine(unit, 20)}`, amount.toLocaleString("en-US", { maximumFractionDigits: 6 })]);
    if (run.verification) pairs.push(["Verification", words(run.verification.status)]);
    if (lost > 0) pairs.push(["No longer kept", plural(lost, "event")]);
    if (run.forked_from) pairs.push(["Forked from", h("a", { href: toRun(run.forked_from) }, oneLine(run.forked_from, 12))]);
    return pairs.map(([label, ...value]) => fact(label, h("bdi", {}, ...value)));
  }

  /** @param {RunLine} run */
  function said(run) {
    return [
      run.error ? h("p", { class: "error" }, h("bdi", {}, visible(start(run.error, 2000)))) : null,
      resume ? h("p", { class: "command" }, h("span", { class: "dim" }, "Go on with it: "), h("code", {}, resume)) : null,
      run.result_text ? h("details", {}, h("summary", {}, "Result"), block("Result", run.result_text)) : null,
      run.prompt.length > 120 ? h("details", {}, h("summary", {}, "Prompt"), block("Prompt", run.prompt)) : null,
    ];
  }
}
