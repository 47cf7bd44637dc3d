/** The packed text, coloured by part, and how much of each part was cut. */

import { h, present, spoken } from "./dom.js";
import { count } from "./format.js";

/** @import { Explained, Extent, Piece } from "../types" */

/** @type {Record<string, string>} */
const NAMES = {
  preamble: "Size (length, tools, turns)",
  latest_user: "Latest user turn",
  tools: "Tools",
  other_turns: "Other turns",
};

/** @param {Explained} explained */
export function packed({ view, unread }) {
  const marked = new Set(
    view.pieces.filter((piece) => piece.is_cut_mark).map((piece) => piece.slot),
  );
  const unmarked = view.extents.filter((extent) => lost(extent) > 0 && !marked.has(extent.slot));
  return present([
    h("ul", { class: "legend" }, ...view.extents.map(legend)),
    h(
      "div",
      { class: "packed", tabindex: 0, role: "group", "aria-label": "Packed text" },
      ...view.pieces.map((piece) => shown(piece, view.extents)),
      ...unmarked.map((extent) => cut(extent)),
    ),
    unread.length > 0 && h("p", { class: "hint" }, `Could not be read: ${unread.join(", ")}.`),
    counts(view.features),
  ]);
}

/** @param {Extent} extent */
const lost = (extent) => extent.whole_tokens - extent.tokens;

/** @param {Extent} extent */
function legend(extent) {
  const whole = `${extent.at_least ? "at least " : ""}${count(extent.whole_tokens)}`;
  const size =
    lost(extent) > 0
      ? `${count(extent.tokens)} of ${whole} tokens`
      : `${count(extent.tokens)} tokens`;
  return h(
    "li",
    { class: extent.slot },
    h("span", { class: "swatch", "aria-hidden": "true" }),
    h("b", {}, NAMES[extent.slot]),
    ` ${size}`,
    lost(extent) > 0 && h("span", { class: "tag" }, "cut"),
  );
}

/** @param {Piece} piece @param {Extent[]} extents */
function shown(piece, extents) {
  if (piece.slot === null) return h("span", { class: "mark" }, piece.text);
  const extent = extents.find((each) => each.slot === piece.slot);
  if (piece.is_cut_mark && extent) return cut(extent, piece.text);
  return h("span", { class: `piece ${piece.slot}` }, spoken(`${NAMES[piece.slot]}: `), piece.text);
}

/** @param {Extent} extent
 * @param {string} [word] the token that the encoder reads instead of the removed text */
function cut(extent, word) {
  const what = `${extent.at_least ? "at least " : ""}${count(lost(extent))} tokens cut`;
  return h(
    "span",
    { class: `cut ${extent.slot}` },
    word && h("span", { class: "mark" }, word),
    ` ${what}, ${NAMES[extent.slot].toLowerCase()}`,
  );
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
