// Builds the page out of elements, attributes and text. Nothing here can make markup, script or a style sheet: whatever
// a tool, a run or a server says can only ever become text.

const SVG = "http://www.w3.org/2000/svg";
const FORBIDDEN = /^(on|style$|srcdoc$|action$|formaction$|src$)/i;

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined>} Attributes */

/**
 * An HTML element with attributes and children; null, undefined and false leave an attribute or a child out.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) attr(made, name, value);
  put(made, ...children);
  return made;
}

/**
 * An SVG element.
 *
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function s(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) attr(made, name, value);
  put(made, ...children);
  return made;
}

/**
 * Sets an attribute where it has changed; null, undefined and false remove it.
 *
 * @param {Element} element
 * @param {string} name
 * @param {string | number | boolean | null | undefined} value
 */
export function attr(element, name, value) {
  if (FORBIDDEN.test(name)) throw new Error(`the attribute ${name} is not for this page`);
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (name === "href" && !/^(#|\/(?!\/))/.test(text)) throw new Error("a link of this page leads to this page");
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/**
 * Sets the text of an element where it has changed.
 *
 * @param {Element} element
 * @param {string | number} value
 */
export function text(element, value) {
  const wanted = String(value);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/**
 * Adds children.
 *
 * @param {Element} element
 * @param {...Child} children
 */
export function put(element, ...children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
}

/**
 * Replaces all children.
 *
 * @param {Element} element
 * @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  put(element, ...children);
}

/**
 * Sets a measure, such as a bar's place, through the style object, which needs no style string.
 *
 * @param {HTMLElement | SVGElement} element
 * @param {"left" | "width" | "height" | "--depth" | "--at" | "--size"} name
 * @param {string} value
 */
export function measure(element, name, value) {
  if (element.style.getPropertyValue(name) !== value) element.style.setProperty(name, value);
}

/**
 * Adds an event listener.
 *
 * @template {keyof HTMLElementEventMap} K
 * @param {EventTarget} target
 * @param {K} type
 * @param {(event: HTMLElementEventMap[K]) => void} listener
 * @param {AddEventListenerOptions} [options]
 */
export function on(target, type, listener, options) {
  target.addEventListener(type, /** @type {EventListener} */ (listener), options);
}

/**
 * A button.
 *
 * @param {Attributes} attributes
 * @param {() => void} press
 * @param {...Child} children
 */
export function button(attributes, press, ...children) {
  const made = h("button", { type: "button", ...attributes }, ...children);
  on(made, "click", press);
  return made;
}

/**
 * Hides or shows an element; if what is hidden has the focus, *heir* gets it.
 *
 * @param {HTMLElement} element
 * @param {boolean} isHidden
 * @param {HTMLElement} heir
 */
export function hide(element, isHidden, heir) {
  const hadFocus = isHidden && element.contains(document.activeElement);
  attr(element, "hidden", isHidden);
  if (hadFocus) heir.focus({ preventScroll: true });
}

/**
 * Brings the children of *parent* into this order, moving as few as possible, and keeps the focus where it was.
 *
 * @param {Element} parent
 * @param {Element[]} wanted
 */
export function arrange(parent, wanted) {
  const focused = document.activeElement;
  const kept = new Set(wanted);
  for (const child of [...parent.children]) if (!kept.has(child)) child.remove();
  let next = parent.firstElementChild;
  for (const child of wanted) {
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
  const lost = focused instanceof HTMLElement && focused !== document.activeElement && parent.contains(focused);
  if (lost) focused.focus({ preventScroll: true });
}

/**
 * Makes *wanted* the children of *parent*; those that are there already, with the same content, stay, and so does what the
 * user has selected in them.
 *
 * @param {Element} parent
 * @param {Element[]} wanted
 */
export function renew(parent, wanted) {
  const before = [...parent.children];
  const kept = wanted.map((each) => {
    const at = before.findIndex((old) => old.isEqualNode(each));
    return at < 0 ? each : (before.splice(at, 1)[0] ?? each);
  });
  arrange(parent, kept);
}
