/** Plot of measured accuracy over cost: policies, the best single model and the oracle. */

import { h, s } from "./dom.js";
import { parsePolicy, percent, usdPer1k } from "./format.js";
import { policyText } from "./policies.js";

/** @import { ArtifactCard, Control, FrontierPoint, Measure } from "../types" */
/** @typedef {{x: (usd: number) => number, y: (share: number) => number}} Scales */

const MARGIN = { left: 46, right: 14, top: 12, bottom: 38 };

/** @typedef {{name: "once" | "verified", points: FrontierPoint[], efficient: string[]}} Curve
 * measured policies of one kind, and those that are more accurate than every cheaper one */

/** The curves of an artifact; the second one only if it has a verifier.
 * @param {ArtifactCard} card @returns {Curve[]} */
export function curves(card) {
  /** @type {Curve[]} */
  const found = [{ name: "once", points: card.frontier, efficient: card.efficient }];
  if (card.verified_frontier.length > 0)
    found.push({
      name: "verified",
      points: card.verified_frontier,
      efficient: card.verified_efficient,
    });
  return found;
}

/** @param {ArtifactCard} card @returns {Control[]} the kinds of policies that were measured */
export function measuredControls(card) {
  const rules = new Set(
    curves(card).flatMap(({ points }) => points.map((point) => parsePolicy(point.policy).rule)),
  );
  return card.rules.filter(({ rule }) => rules.has(rule));
}

/** Explains the marks of a plot. Screen readers get the plot's description instead.
 * @param {ArtifactCard} card @param {string} current meaning of the marked policy
 * @param {string} [rule] whose points are shown (all without one) */
export function legend(card, current, rule) {
  const entry = (/** @type {string} */ kind, /** @type {string} */ text) =>
    h("li", { class: kind }, h("span", { class: "swatch" }), text);
  const verified = curves(card).length > 1;
  return h(
    "ul",
    { class: "legend plot-legend", "aria-hidden": "true" },
    ...measuredControls(card)
      .filter((control) => control.kind === "once" && (!rule || rule === control.rule))
      .map((control) => entry(control.rule, control.legend)),
    entry(
      "line",
      verified
        ? "best accuracy for the cost, with one model per request"
        : "best accuracy for the cost",
    ),
    ...measuredControls(card)
      .filter(({ kind }) => kind === "verified")
      .map((control) => entry(control.kind, control.legend)),
    entry("ring", current),
  );
}

/** @typedef {{current: string, rule?: string, height?: number}} Options the marked policy, the
 * rule whose points are shown (all without one), and the height */

/** A plot that always fills the width of its place, so that its text keeps its size. */
export class FrontierPlot {
  element = h("div", { class: "plot" });

  /** @param {ArtifactCard} card @param {Options} options */
  constructor(card, options) {
    this.card = card;
    this.options = options;
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  /** @param {Options} options */
  show(options) {
    this.options = options;
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (width) this.element.replaceChildren(drawn(this.card, this.options, width));
  }
}

/** @param {ArtifactCard} card @param {Options} options @param {number} width
 * @returns {SVGElement} */
function drawn(card, { current, rule, height = 230 }, width) {
  const marks = references(card).filter((mark) => !rule || mark.name !== "oracle");
  const all = curves(card).flatMap(({ points }) => points);
  const shown = all.filter((point) => !rule || parsePolicy(point.policy).rule === rule);
  const scales = scalesOf([...all, ...marks], width, height);
  const now = all.find((point) => point.policy === current);
  return s(
    "svg",
    {
      class: "frontier",
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": description(card, now),
    },
    ...axes(scales, width, height),
    ...curves(card).map((curve) => staircase(curve, scales)),
    ...curves(card).flatMap(({ name, points }) =>
      points.filter((point) => shown.includes(point)).map((point) => dot(point, name, scales)),
    ),
    ...marks.map((mark) => diamond(mark, scales)),
    ...(now ? marked(now, scales) : []),
    ...labelled(
      [
        ...(now ? [{ text: policyText(now.policy), kind: "now-label", ...at(now, scales) }] : []),
        ...marks.map((mark) => ({
          text: mark.label,
          kind: "reference-label",
          ...at(mark, scales),
        })),
      ],
      [...shown, ...curves(card).flatMap(corners), ...marks].map((point) => [
        at(point, scales).x,
        at(point, scales).y,
      ]),
      { left: MARGIN.left, right: width, top: 0, bottom: height - MARGIN.bottom },
    ),
  );
}

/** @param {{accuracy: Measure, cost_usd: Measure}} mark @param {Scales} scales */
const at = ({ accuracy, cost_usd }, { x, y }) => ({ x: x(cost_usd.value), y: y(accuracy.value) });

/** @param {Curve} curve @returns {FrontierPoint[]} the points of its line, by rising cost */
const corners = ({ points, efficient }) =>
  points
    .filter((point) => efficient.includes(point.policy))
    .sort((a, b) => a.cost_usd.value - b.cost_usd.value);

/** @param {ArtifactCard} card
 * @returns {{name: string, label: string, accuracy: Measure, cost_usd: Measure}[]} */
function references(card) {
  const metrics = card.metrics;
  return [
    ["best_single", "best single model"],
    ["oracle", "perfect router"],
  ]
    .filter(([name]) => metrics[`${name}_accuracy`] && metrics[`${name}_cost_usd`]?.value > 0)
    .map(([name, label]) => ({
      name,
      label,
      accuracy: metrics[`${name}_accuracy`],
      cost_usd: metrics[`${name}_cost_usd`],
    }));
}

/** @param {{accuracy: Measure, cost_usd: Measure}[]} points @param {number} width
 * @param {number} height @returns {Scales} */
function scalesOf(points, width, height) {
  const costs = points.map((point) => Math.log10(point.cost_usd.value || 1e-6));
  const shares = points.map((point) => point.accuracy.value);
  const scale = (
    /** @type {number[]} */ values,
    /** @type {number} */ from,
    /** @type {number} */ to,
  ) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const pad = (high - low || 1) * 0.08;
    return (/** @type {number} */ value) =>
      from + ((value - low + pad) / (high - low + 2 * pad)) * (to - from);
  };
  const x = scale(costs, MARGIN.left, width - MARGIN.right);
  return {
    x: (usd) => x(Math.log10(usd || 1e-6)),
    y: scale(shares, height - MARGIN.bottom, MARGIN.top),
  };
}

/** @param {Scales} scales @param {number} width @param {number} height */
function axes({ x, y }, width, height) {
  const bottom = height - MARGIN.bottom;
  const inX = (/** @type {number} */ at) => at >= MARGIN.left && at <= width - MARGIN.right;
  const inY = (/** @type {number} */ at) => at >= MARGIN.top && at <= bottom;
  const digits = width < 300 ? [1] : [1, 2, 5];
  const costs = [-6, -5, -4, -3, -2]
    .flatMap((power) => digits.map((digit) => digit * 10 ** power))
    .filter((usd) => inX(x(usd)));
  const shares = Array.from({ length: 50 }, (_, index) => index * 0.02).filter((share) =>
    inY(y(share)),
  );
  return [
    ...shares.map((share) =>
      s(
        "g",
        {},
        s("line", {
          class: "grid",
          x1: MARGIN.left,
          x2: width - MARGIN.right,
          y1: y(share),
          y2: y(share),
        }),
        s("text", { x: MARGIN.left - 8, y: y(share) + 4, "text-anchor": "end" }, percent(share, 0)),
      ),
    ),
    ...costs.map((usd) =>
      s("text", { x: x(usd), y: bottom + 17, "text-anchor": "middle" }, usdPer1k(usd)),
    ),
    s("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
    s(
      "text",
      { class: "title", x: width - MARGIN.right, y: height - 4, "text-anchor": "end" },
      "USD per 1,000 requests, log scale",
    ),
  ];
}

/** @param {Curve} curve @param {Scales} scales the best accuracy for each cost */
function staircase(curve, { x, y }) {
  const line = corners(curve).map((point, index) => {
    const [px, py] = [x(point.cost_usd.value).toFixed(1), y(point.accuracy.value).toFixed(1)];
    return index === 0 ? `M${px} ${py}` : `H${px}V${py}`;
  });
  return s("path", { class: `staircase ${curve.name}`, d: line.join("") });
}

/** @param {FrontierPoint} point @param {Curve["name"]} kind @param {Scales} scales */
function dot(point, kind, { x, y }) {
  const [cx, cy] = [x(point.cost_usd.value), y(point.accuracy.value)];
  const shape =
    kind === "verified" ? { x: cx - 3, y: cy - 3, width: 6, height: 6 } : { cx, cy, r: 3 };
  return s(
    kind === "verified" ? "rect" : "circle",
    { class: `dot ${parsePolicy(point.policy).rule}`, ...shape },
    s(
      "title",
      {},
      `${policyText(point.policy)}: ${percent(point.accuracy.value)} at ${usdPer1k(point.cost_usd.value)} per 1,000`,
    ),
  );
}

/** @param {{accuracy: Measure, cost_usd: Measure}} mark @param {Scales} scales */
function diamond({ accuracy, cost_usd }, { x, y }) {
  const [cx, cy] = [x(cost_usd.value), y(accuracy.value)];
  return s("path", {
    class: "reference",
    d: `M${cx - 5} ${cy}L${cx} ${cy - 5}L${cx + 5} ${cy}L${cx} ${cy + 5}Z`,
  });
}

/** @param {FrontierPoint} point @param {Scales} scales */
function marked(point, { x, y }) {
  const [cx, cy] = [x(point.cost_usd.value), y(point.accuracy.value)];
  const error = point.accuracy_interval;
  const paid = point.cost_usd_interval;
  return [
    error && s("line", { class: "error", x1: cx, x2: cx, y1: y(error[0]), y2: y(error[1]) }),
    paid && s("line", { class: "error", x1: x(paid[0]), x2: x(paid[1]), y1: cy, y2: cy }),
    s("circle", { class: "now", cx, cy, r: 6 }),
  ];
}

/** @typedef {{left: number, right: number, top: number, bottom: number}} Box */

const CHARACTER_PX = 6.5;
const LINE_PX = 14;

/** Places of a label relative to its mark, the preferred ones first: the anchor of the text, and
 * the distances of its baseline. */
const PLACES = [-11, 21, -26, 36, -41, 51].flatMap((dy) => [
  { anchor: "end", dx: -6, dy },
  { anchor: "start", dx: 6, dy },
  { anchor: "middle", dx: 0, dy },
]);

/** Labels of marks, each where it covers the least of the points, curves and earlier labels.
 * @param {{text: string, kind: string, x: number, y: number}[]} labels
 * @param {[number, number][]} points that should stay visible @param {Box} area of the plot */
function labelled(labels, points, area) {
  /** @type {Box[]} */
  const taken = [];
  return labels.map(({ text, kind, x, y }) => {
    const length = text.length * CHARACTER_PX;
    const covered = PLACES.map(({ anchor, dx, dy }) => {
      const left = x + dx - (anchor === "end" ? length : anchor === "middle" ? length / 2 : 0);
      const box = { left, right: left + length, top: y + dy - LINE_PX + 3, bottom: y + dy + 4 };
      const isOutside =
        box.left < area.left ||
        box.right > area.right ||
        box.top < area.top ||
        box.bottom > area.bottom;
      const hidden = points.filter(
        ([px, py]) =>
          px > box.left - 4 && px < box.right + 4 && py > box.top - 3 && py < box.bottom + 3,
      ).length;
      const overlaps = taken.filter(
        (other) =>
          box.left < other.right &&
          box.right > other.left &&
          box.top < other.bottom &&
          box.bottom > other.top,
      ).length;
      return { anchor, dx, dy, box, cost: hidden + 50 * overlaps + (isOutside ? 200 : 0) };
    });
    const best = covered.reduce((one, other) => (other.cost < one.cost ? other : one));
    taken.push(best.box);
    return s(
      "text",
      { class: kind, x: x + best.dx, y: y + best.dy, "text-anchor": best.anchor },
      text,
    );
  });
}

/** @param {ArtifactCard} card @param {FrontierPoint | undefined} now */
function description(card, now) {
  const best = card.metrics.best_single_accuracy;
  const verified = card.verified_frontier.length;
  const parts = [
    `Measured accuracy over cost of ${card.frontier.length} policies${verified > 0 ? ` that ask one model per request, and of ${verified} that verify answers` : ""}`,
    now &&
      `${policyText(now.policy)} has an accuracy of ${percent(now.accuracy.value)} at ${usdPer1k(now.cost_usd.value)} per 1,000`,
    best &&
      `the best single model ${percent(best.value)} at ${usdPer1k(card.metrics.best_single_cost_usd.value)}`,
  ];
  return `${parts.filter(Boolean).join("; ")}.`;
}
