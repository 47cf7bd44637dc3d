/** The packed text, coloured by part, and which parts were cut. */

import { h, present, spoken } from "./dom.js";
import { count } from "./format.js";

/** @import { Explained, PackedPiece } from "../types" */

/** @type {Record<string, string>} */
const NAMES = {
  preamble: "Size (length, tools, turns)",
  latest_user: "Latest user turn",
  tools: "Tools",
  other_turns: "Other turns",
};

/** @param {Explained} explained */
export function packed({ view, unread }) {
  return present([
    h("ul", { class: "legend" }, ...view.pieces.map(legend)),
    h(
      "div",
      { class: "packed", tabindex: 0, role: "group", "aria-label": "Packed text" },
      ...view.pieces.map(shown),
    ),
    unread.length > 0 && h("p", { class: "hint" }, `Could not be read: ${unread.join(", ")}.`),
    counts(view.features),
  ]);
}

/** @param {PackedPiece} piece */
function legend({ slot, tokens, is_cut }) {
  if (slot === null) return null;
  return h(
    "li",
    { class: slot },
    h("span", { class: "swatch", "aria-hidden": "true" }),
    h("b", {}, NAMES[slot]),
    ` ${count(tokens)} tokens`,
    is_cut && h("span", { class: "tag" }, "cut"),
  );
}

/** @param {PackedPiece} piece */
function shown({ slot, text }) {
  if (slot === null) return h("span", { class: "mark" }, text);
  return h("span", { class: `piece ${slot}` }, spoken(`${NAMES[slot]}: `), text);
}

/** @param {Record<string, number>} features */
function counts(features) {
  const all = Object.entries(features);
  if (all.length === 0) return null;
  const counted = all.filter(([, value]) => value !== 0);
  return h(
    "details",
    {},
    h(
      "summary",
      {},
      `${all.length} numbers are computed from the request too; ${counted.length} are not 0`,
    ),
    h(
      "ul",
      { class: "counts" },
      ...counted.map(([name, value]) =>
        h("li", {}, `${name.replaceAll("_", " ")} `, h("b", {}, +value.toFixed(3))),
      ),
    ),
  );
}
