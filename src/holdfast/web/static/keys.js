// The keyboard: small letters look around, capitals change something and ask first.

import { h } from "./dom.js";
import { show } from "./say.js";

/** @typedef {import("./types.js").Screen} Screen */

const KEYS = [
  ["j k", "next and previous row (↓ ↑ too)"],
  ["enter", "open what the row stands for"],
  ["esc", "back: closes, clears, then goes up"],
  ["/", "filter"],
  ["f", "failed only"],
  ["space", "pause and go on"],
  ["1 2 3 4 5", "tools, the last tool, runs, the last run, servers"],
  ["e", "export this run"],
  ["y", "copy the resume command"],
  ["t", "light, dark, or as the system has it"],
  ["?", "this list"],
];
const CAPITALS = [
  ["O", "hold a circuit open: refuse every call"],
  ["C", "hold a circuit closed: let every call pass"],
  ["A", "auto: the circuit decides by itself again"],
  ["R", "reset a circuit and forget its failures"],
  ["X", "cancel a run; in the list of runs, the one the focus is on"],
  ["B", "cancel every run that the filter shows"],
];

/**
 * Handles all keys of the page.
 *
 * @param {object} page
 * @param {() => Screen | null} page.screen
 * @param {(number: number) => void} page.go
 * @param {() => void} page.pause
 * @param {() => void} page.theme
 * @param {() => void} page.up
 */
export function listen(page) {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const target = event.target instanceof HTMLElement ? event.target : document.body;
    if (target.matches("input, select, textarea")) {
      if (event.key === "Escape") target.blur();
      else if (event.key !== "Enter" || !target.matches("input")) return;
      else page.screen()?.move?.(1);
      event.preventDefault();
      return;
    }
    const act = action(event.key, target, page);
    if (act === undefined) return;
    event.preventDefault();
    act();
  });
}

/**
 * @param {string} key
 * @param {HTMLElement} target
 * @param {Parameters<typeof listen>[0]} page
 * @returns {(() => void) | undefined}
 */
function action(key, target, page) {
  const screen = page.screen();
  if (/^[1-5]$/.test(key)) return () => page.go(Number(key));
  switch (key) {
    case "j":
    case "ArrowDown":
      return screen?.move && (() => screen.move?.(1));
    case "k":
    case "ArrowUp":
      return screen?.move && (() => screen.move?.(-1));
    case "/":
      return () => screen?.search?.focus();
    case "f":
      return screen?.failed;
    case " ":
      return target.matches("button, summary") ? undefined : page.pause;
    case "?":
      return help;
    case "t":
      return page.theme;
    case "Escape":
      return () => {
        if (!screen?.back?.()) page.up();
      };
    default:
      return screen?.actions && Object.hasOwn(screen.actions, key) ? screen.actions[key] : undefined;
  }
}

/** Shows what the keys do. */
export function help() {
  show("Keys", list(KEYS), h("h3", {}, "Capitals change something, and ask first"), list(CAPITALS));
}

/** @param {string[][]} pairs */
function list(pairs) {
  return h(
    "dl",
    { class: "keys" },
    ...pairs.flatMap(([keys = "", words = ""]) => [
      h("dt", {}, ...keys.split(" ").map((key) => h("kbd", {}, key))),
      h("dd", {}, words),
    ]),
  );
}
