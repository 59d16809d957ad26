// The keyboard: small letters look around, capitals change something and ask first. All of them can be switched off: for
// users who speak to their computer, each word that is not understood is a row of letters.

import { attr, button, h } from "./dom.js";
import { pressed } from "./parts.js";
import { say, show } from "./say.js";

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
  recall();
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    if (event.isComposing || event.keyCode === 229) return; // it belongs to an input method, which puts a character together
    const target = event.target instanceof HTMLElement ? event.target : document.body;
    if (target.matches("input, select, textarea")) {
      if (event.key === "Escape") target.blur();
      else if (event.key !== "Enter" || !target.matches("input")) return;
      else page.screen()?.move?.(1);
      event.preventDefault();
      return;
    }
    const act = action(latin(event), target, page);
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
  if (key.length === 1 && key !== " " && areOff()) return undefined;
  if (key.startsWith("Arrow") && target.matches("pre, .gridbox")) return undefined; // they scroll it
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

/**
 * The letter that is on this key of a Latin keyboard, for users who write in another script.
 *
 * @param {KeyboardEvent} event
 */
function latin({ key, code, shiftKey }) {
  if (!/^\p{Letter}$/u.test(key) || /\p{Script=Latin}/u.test(key) || !/^Key[A-Z]$/.test(code)) return key;
  return shiftKey ? code.slice(3) : code.slice(3).toLowerCase();
}

/** Shows what the keys do. */
export function help() {
  const single = button({ class: "toggle" }, () => change(), "Use letters, digits and signs");
  const change = () => {
    attr(document.documentElement, "data-keys", areOff() ? null : "off");
    pressed(single, !areOff());
    say(`Letters, digits and signs are ${areOff() ? "off" : "on"}`);
    keep();
  };
  pressed(single, !areOff());
  show("Keys", list(KEYS), h("h3", {}, "Capitals change something, and ask first"), list(CAPITALS), h("h3", {}, "Without them, words that you speak to your computer do nothing here"), h("p", {}, single));
}

function areOff() {
  return document.documentElement.dataset.keys === "off";
}

function recall() {
  try {
    attr(document.documentElement, "data-keys", localStorage.getItem("holdfast.keys"));
  } catch {
    // Storage is switched off: there is no choice to restore.
  }
}

function keep() {
  try {
    if (areOff()) localStorage.setItem("holdfast.keys", "off");
    else localStorage.removeItem("holdfast.keys");
  } catch {
    // Storage is switched off: the choice lasts as long as the page.
  }
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
