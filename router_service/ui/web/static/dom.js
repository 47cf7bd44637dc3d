/** Creates elements; a string always becomes text, never markup. */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, unknown>} Props `on*` are listeners, `style` holds custom properties */

/**
 * @template {Element} E
 * @param {E} element
 * @param {Props} props
 * @param {Child[]} children
 * @returns {E}
 */
function filled(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on"))
      element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else if (name === "style") setStyle(/** @type {any} */ (element), /** @type {any} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(
    ...children
      .filter((c) => c !== null && c !== undefined && c !== false)
      .map((c) => (c instanceof Node ? c : String(c))),
  );
  return element;
}

/** @param {HTMLElement} element @param {Record<string, string | number>} style */
function setStyle(element, style) {
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, String(value));
}

/** Creates an HTML element.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag @param {Props} [props] @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]} */
export function h(tag, props = {}, ...children) {
  return filled(document.createElement(tag), props, children);
}

/** Creates an SVG element.
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag @param {Props} [props] @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]} */
export function s(tag, props = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), props, children);
}

/** The element with an id; of a class, if one is given.
 * @template {HTMLElement} [Kind=HTMLElement]
 * @param {string} id @param {new () => Kind} [kind] @returns {Kind} */
export function byId(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof (kind ?? HTMLElement))) throw new Error(`no such element: #${id}`);
  return /** @type {Kind} */ (found);
}

/** Shows an error, or hides its element if there is no error.
 * @param {string} id @param {unknown} [error] */
export function showError(id, error) {
  const place = byId(id);
  place.hidden = !error;
  place.textContent = error ? messageOf(error) : "";
}

/** @param {unknown} error @returns {HTMLElement} an error in the place of what failed */
export const errorNotice = (error) =>
  h("p", { class: "notice error", role: "alert" }, messageOf(error));

/** @param {unknown} error @returns {string} */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @param {string} text @returns {HTMLElement} text for screen readers only */
export const spoken = (text) => h("span", { class: "spoken" }, text);

/** A name that people chose: cut where it is too long, and complete in its title. Its direction does
 * not affect its surroundings.
 * @param {string} name @returns {HTMLElement} */
export const shortened = (name) => h("bdi", { class: "name", title: name }, name);

/** Text in which back quotes mark code.
 * @param {string} text @returns {Child[]} */
export const inline = (text) =>
  text.split("`").map((part, index) => (index % 2 === 1 ? h("code", {}, part) : part));

/** @param {Child[]} children @returns {Node[]} the children that are nodes */
export const present = (children) => children.filter((child) => child instanceof Node);

/** A list of names with values; entries without a value are omitted.
 * @param {Child[][]} facts @param {string} [kind] */
export function facts(facts, kind = "facts") {
  const shown = facts.filter(([, value]) => value !== null && value !== undefined);
  return h(
    "dl",
    { class: kind },
    ...shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))),
  );
}

/** A table, whose rows become lists on narrow screens.
 * @param {string} caption @param {string[]} head @param {Child[][]} rows first cells are headers */
export function table(caption, head, rows) {
  const cells = (/** @type {Child[]} */ [first, ...rest]) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, first),
      ...rest.map((cell, index) => h("td", { "data-name": head[index + 1] }, cell)),
    );
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "spoken" }, caption),
      h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...rows.map(cells)),
    ),
  );
}
