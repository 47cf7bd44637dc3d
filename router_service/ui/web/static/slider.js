/** The policy slider: the measured rules of one kind, their results, and the arms that they choose. */

import { facts, h } from "./dom.js";
import { frontierPlot } from "./frontier.js";
import { parsePolicy, percent, points, usdPer1k, within } from "./format.js";

/** @typedef {import("./api.js").Choice} Choice */
/** @typedef {import("./api.js").Explained} Explained */
/** @typedef {import("./api.js").Point} Point */
/** @typedef {{point: Point, choice: Choice, value: number}} Step */
/** @typedef {{arm: string, from: number, to: number}} Run steps that choose one arm */

/** @type {Record<string, string>} */
const RULES = { drift: "Cheapest near the most probable (drift)", theta: "Cheapest above a threshold (theta)" };

export class PolicySlider {
  rule = "";
  /** @type {Step[]} */
  steps = [];
  /** @type {Run[]} */
  runs = [];
  input = /** @type {HTMLInputElement} */ (h("input", {
    type: "range", id: "policy-slider", min: 0, step: 1, "aria-describedby": "policy-flips", oninput: () => this.move(),
  }));
  output = h("output", { for: "policy-slider", class: "readout" });
  plot = h("div", { class: "plot" });
  strip = h("div", { class: "strip", "aria-hidden": "true" });

  /**
   * @param {HTMLElement} place
   * @param {import("./api.js").Card} card
   * @param {Explained} explained
   * @param {(choice: Choice) => void} onChoice called when the slider is moved
   */
  constructor(place, card, explained, onChoice) {
    this.place = place;
    this.card = card;
    this.explained = explained;
    this.onChoice = onChoice;
    this.redraw = frontierPlot(this.plot, card, { current: "" });
    if (card.frontier.length === 0) place.replaceChildren(h("p", {}, `${explained.chosen.policy}. The artifact has no measured policies.`));
    else this.draw(parsePolicy(explained.chosen.policy).rule);
  }

  /** @param {string} rule */
  draw(rule) {
    this.rule = rule;
    this.steps = steps(this.card, this.explained, rule);
    this.runs = runs(this.steps);
    this.input.max = String(this.steps.length - 1);
    this.place.style.setProperty("--steps", String(this.steps.length));
    this.place.replaceChildren(...this.layout());
    this.input.value = String(nearest(this.steps, this.explained.chosen, rule));
    this.show();
  }

  layout() {
    return [
      h("fieldset", { class: "rules" }, h("legend", { class: "spoken" }, "Rule"), ...Object.entries(RULES).map(([rule, name]) => this.radio(rule, name))),
      h("div", { class: "policy-grid" },
        h("div", { class: "track" },
          this.output, h("label", { for: "policy-slider" }, "Arm that each policy chooses"), this.strip, h("div", { class: "rail" }, this.input),
          h("div", { class: "ends", "aria-hidden": "true" }, h("span", {}, "cheaper"), h("span", {}, "more expensive")),
          h("p", { class: "hint", id: "policy-flips" }, flips(this.steps, this.runs))),
        this.plot),
    ];
  }

  /** @param {string} rule @param {string} name */
  radio(rule, name) {
    const input = h("input", { type: "radio", name: "rule", value: rule, checked: rule === this.rule, onchange: () => this.change(rule) });
    return h("label", { class: "option" }, input, h("span", {}, name));
  }

  /** @param {string} rule */
  change(rule) {
    this.draw(rule);
    this.move();
    /** @type {HTMLElement | null} */ (this.place.querySelector("input:checked"))?.focus();
  }

  get step() {
    return this.steps[Number(this.input.value)];
  }

  move() {
    this.show();
    this.onChoice(this.step.choice);
  }

  show() {
    const { point, choice } = this.step;
    this.input.setAttribute("aria-valuetext", `${point.policy}: ${percent(point.accuracy.value)} right, ${usdPer1k(point.cost_usd.value)} per 1,000; chooses ${choice.arm}`);
    this.output.replaceChildren(readout(point));
    this.redraw({ current: point.policy, rule: this.rule });
    const at = Number(this.input.value);
    this.strip.replaceChildren(...this.runs.map((run) => segment(run, at)));
  }
}

/** Steps from the cheapest to the most expensive rule.
 * @param {import("./api.js").Card} card @param {Explained} explained @param {string} rule @returns {Step[]} */
function steps(card, explained, rule) {
  const sign = rule === "drift" ? -1 : 1;
  return card.frontier
    .map((/** @type {Point} */ point, /** @type {number} */ index) => ({ point, choice: explained.choices[index], ...parsePolicy(point.policy) }))
    .filter((/** @type {{rule: string}} */ step) => step.rule === rule)
    .sort((/** @type {Step} */ a, /** @type {Step} */ b) => sign * (a.value - b.value));
}

/** @param {Step[]} steps @param {Choice} chosen @param {string} rule returns the step to begin at */
function nearest(steps, chosen, rule) {
  const current = parsePolicy(chosen.policy);
  const value = current.rule === rule ? current.value : steps[Math.floor(steps.length / 2)].value;
  const distances = steps.map((step) => Math.abs(step.value - value));
  return distances.indexOf(Math.min(...distances));
}

/** @param {Step[]} steps @returns {Run[]} */
function runs(steps) {
  /** @type {Run[]} */
  const found = [];
  for (const [index, { choice }] of steps.entries()) {
    const last = found.at(-1);
    if (last?.arm === choice.arm) last.to = index;
    else found.push({ arm: choice.arm, from: index, to: index });
  }
  return found;
}

/** @param {Run} run @param {number} at */
function segment(run, at) {
  const isCurrent = run.from <= at && at <= run.to;
  return h("span", { class: isCurrent ? "run is-current" : "run", title: run.arm, style: { "grid-column": `${run.from + 1} / ${run.to + 2}` } }, run.arm);
}

/** @param {Step[]} steps @param {Run[]} runs */
function flips(steps, runs) {
  if (runs.length === 1) return `Every measured policy of this kind chooses ${runs[0].arm}.`;
  const changes = runs.slice(1).map((run) => `${run.arm} from ${steps[run.from].point.policy}`);
  return `The choice changes along the slider: first ${runs[0].arm}, then ${changes.join(", then ")}.`;
}

/** @param {Point} point */
function readout(point) {
  const versus = point.versus_best;
  return facts([
    ["Rule", h("span", { class: "mono", id: "policy-now" }, point.policy)],
    ["Measured accuracy", detailed(percent(point.accuracy.value), within(point.accuracy_interval, (value) => percent(value)))],
    ["Measured cost per 1,000 requests", detailed(usdPer1k(point.cost_usd.value), within(point.cost_usd_interval, usdPer1k))],
    ["Compared with the best single model", versus && detailed(
      `${points(versus.difference)} percentage points`,
      versus.cost_share === null ? "" : `${percent(versus.cost_share, 0)} of its cost`)],
  ], "facts readouts");
}

/** @param {string} value @param {string} detail */
const detailed = (value, detail) => h("span", {}, value, " ", h("small", {}, detail));
