// A worker that all tabs of a browser share: one connection to the server for all of them, open while a tab is visible.
// A browser allows six connections to a server, and more tabs than that must work.

import { Feed } from "./feed.js";
import { Picture } from "./picture.js";

/** @type {Map<MessagePort, boolean>} */
const tabs = new Map(); // and whether each is visible
const picture = new Picture();
/** @type {{standing: string, detail: string}} */
let last = { standing: "closed", detail: "" };
/** @type {object | null} */
let trouble = null; // the note that the store cannot be read, while that is so

const feed = new Feed(
  "/api/stream",
  (message) => {
    const told = JSON.parse(message.data);
    if (message.type !== "note") picture.take(message.type, told);
    trouble = message.type === "note" && told.code === "store" ? told : null;
    for (const [port, seen] of tabs) if (seen) port.postMessage({ type: message.type, told });
  },
  (standing, detail) => {
    last = { standing, detail };
    for (const port of tabs.keys()) port.postMessage(last);
  },
);

/**
 * @param {MessagePort} port
 * @param {string} word
 */
function obey(port, word) {
  if (word === "bye") tabs.delete(port);
  else tabs.set(port, word === "look");
  if (word === "look") {
    if (picture.complete) port.postMessage({ type: "hello", told: picture.whole() });
    feed.start();
    port.postMessage(last);
    if (trouble) port.postMessage({ type: "note", told: trouble });
  }
  if (![...tabs.values()].includes(true)) feed.stop();
}

self.addEventListener("connect", (event) => {
  const [port] = /** @type {MessageEvent} */ (event).ports;
  if (port === undefined) return;
  port.onmessage = (message) => obey(port, message.data);
  tabs.set(port, false);
});
