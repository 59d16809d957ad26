// Tells the user what has happened: as text for screen readers, and in a corner of the page. And asks, once, before
// something is changed.

import { button, h, on } from "./dom.js";

const STAYS = 5000; // milliseconds that a message stays
const BAD_STAYS = 20_000; // the same for what went wrong, which takes longer to read

/**
 * Says something to screen readers. It stays for a while: words that are removed at once are not read out.
 *
 * @param {string} words
 */
export function say(words) {
  const place = document.getElementById("says");
  if (!place) return;
  const said = h("p", {}, words);
  place.append(said);
  setTimeout(() => said.remove(), STAYS);
}

/**
 * Says something to screen readers, and shows it in a corner.
 *
 * @param {string} words
 * @param {"good" | "bad"} [tone]
 */
export function tell(words, tone = "good") {
  say(words);
  const toast = h("p", { class: `toast ${tone}` }, words);
  const place = document.getElementById("toasts");
  for (const each of [...(place?.children ?? [])]) if (each.isEqualNode(toast)) each.remove();
  place?.append(toast);
  setTimeout(() => toast.remove(), tone === "bad" ? BAD_STAYS : STAYS);
}

/**
 * Asks whether to do something; true if so.
 *
 * @param {{question: string, object: string, note: string, verb: string, danger?: boolean}} what
 * @returns {Promise<boolean>}
 */
export function ask({ question, object, note, verb, danger = false }) {
  if (document.querySelector("dialog[open]")) return Promise.resolve(false); // only one, even if two keys came early
  const before = document.activeElement;
  const yes = button({ class: danger ? "main danger" : "main" }, () => dialog.close("yes"), verb);
  const no = button({}, () => dialog.close("no"), "Leave it");
  const dialog = h(
    "dialog",
    { class: "ask", "aria-labelledby": "ask-title", "aria-describedby": "ask-note" },
    h("h2", { id: "ask-title" }, question, " ", h("bdi", { class: "object" }, object), "?"),
    h("p", { id: "ask-note" }, note),
    h("p", { class: "buttons" }, yes, no, h("span", { class: "hint" }, h("kbd", {}, "enter"), " or ", h("kbd", {}, "esc"))),
  );
  return new Promise((resolve) => {
    on(dialog, "close", () => {
      dialog.remove();
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
    yes.focus();
  });
}

/**
 * Shows something above the page until it is closed.
 *
 * @param {string} title
 * @param {...Node} content
 */
export function show(title, ...content) {
  const dialog = h("dialog", { class: "sheet", "aria-labelledby": "sheet-title" });
  const close = button({ class: "main" }, () => dialog.close(), "Close");
  dialog.append(h("h2", { id: "sheet-title" }, title), ...content, h("p", { class: "buttons" }, close));
  on(dialog, "close", () => dialog.remove());
  on(dialog, "click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
}

/**
 * Copies text to the clipboard.
 *
 * @param {string} words
 */
export async function copy(words) {
  try {
    await navigator.clipboard.writeText(words);
    tell("Copied");
  } catch {
    tell("The browser does not let the page copy: select the text instead", "bad");
  }
}
