/** The policy slider: the measured rules of one kind, their results, and the arms they choose. */

import { facts, h } from "./dom.js";
import { curves, FrontierPlot, legend, measuredControls } from "./frontier.js";
import {
  controlOf,
  modelOf,
  parsePolicy,
  percent,
  points,
  usd,
  usdPer1k,
  within,
} from "./format.js";
import { policyText, readPolicy } from "./policies.js";

/** @import { ArtifactCard, Choice, Control, Explained, FrontierPoint, Reason } from "../types" */
/** @typedef {Omit<Choice, "reason"> & {reason: Reason | null, isFirstStep?: boolean}} Selection
 * the arm that a policy chooses, or that it asks first if answers are verified */
/** @typedef {{point: FrontierPoint, choice: Selection, explanation: string, value: number}} Step */
/** @typedef {{arm: string, from: number, to: number}} Run steps that choose one arm */

/** @typedef {{name: string, controls: Control[]}} Group kinds of policies that work alike */

/** @type {Record<Control["kind"], string>} */
const GROUPS = { once: "One model per request", verified: "Verified answers" };

export class PolicySlider {
  rule = "";
  /** @type {Step[]} */
  steps = [];
  /** @type {Run[]} */
  runs = [];
  input = h("input", {
    type: "range",
    id: "policy-slider",
    min: 0,
    step: 1,
    "aria-describedby": "policy-flips",
    oninput: () => this.move(),
  });
  output = h("output", { for: "policy-slider" });
  strip = h("div", { class: "strip", "aria-hidden": "true" });

  /**
   * @param {HTMLElement} place
   * @param {ArtifactCard} card
   * @param {Explained} explained
   * @param {string} start the policy at which it stands first
   * @param {(choice: Selection, explanation: string, policy: string) => void} onChoice
   *   called when the slider is moved, with the policy to send
   */
  constructor(place, card, explained, start, onChoice) {
    this.place = place;
    this.card = card;
    this.explained = explained;
    this.onChoice = onChoice;
    this.plot = new FrontierPlot(card, { current: "" });
    this.start = start;
    if (curves(card).every(({ points }) => points.length === 0))
      place.replaceChildren(
        h(
          "p",
          {},
          `Policy: ${policyText(explained.chosen.policy)}. This router has no measured policies to compare.`,
        ),
      );
    else
      this.draw(
        this.rules.includes(parsePolicy(this.start).rule)
          ? parsePolicy(this.start).rule
          : this.rules[0],
      );
  }

  /** @returns {Group[]} */
  get groups() {
    return curves(this.card)
      .filter(({ points }) => points.length > 0)
      .map(({ name }) => ({
        name: GROUPS[name],
        controls: measuredControls(this.card).filter(({ kind }) => kind === name),
      }));
  }

  get rules() {
    return this.groups.flatMap(({ controls }) => controls.map(({ rule }) => rule));
  }

  /** @param {string} rule */
  draw(rule) {
    this.rule = rule;
    this.steps = steps(this.card, this.explained, rule);
    this.runs = runs(this.steps);
    this.input.max = String(this.steps.length - 1);
    this.place.style.setProperty("--steps", String(this.steps.length));
    this.place.replaceChildren(...this.layout());
    this.input.value = String(nearest(this.steps, this.start, rule));
    this.show();
  }

  layout() {
    return [
      h(
        "fieldset",
        { class: "rules" },
        h("legend", { class: "spoken" }, "Rule"),
        ...this.groups.map((group) => this.group(group)),
      ),
      h(
        "div",
        { class: "policy-grid" },
        h(
          "div",
          { class: "track" },
          this.output,
          h(
            "label",
            { for: "policy-slider" },
            controlOf(this.card, this.rule)?.kind === "verified"
              ? "Model that each policy asks first"
              : "Model that each policy chooses",
          ),
          this.strip,
          h("div", { class: "rail" }, this.input),
          h(
            "div",
            { class: "ends", "aria-hidden": "true" },
            h("span", {}, "← cheaper"),
            h("span", {}, "more expensive →"),
          ),
          h("p", { class: "hint", id: "policy-flips" }, this.flips()),
        ),
        h(
          "div",
          {},
          this.plot.element,
          this.groups.length > 1 && legend(this.card, "selected policy", this.rule),
        ),
      ),
    ];
  }

  /** @param {Group} group without a name if there is only one */
  group({ name, controls }) {
    const options = controls.map((control) => this.radio(control));
    if (this.groups.length === 1) return h("div", { class: "rule-group" }, ...options);
    return h(
      "div",
      { class: "rule-group", role: "group", "aria-label": name },
      h("span", { class: "group-name", "aria-hidden": "true" }, name),
      ...options,
    );
  }

  /** @param {Control} control */
  radio({ rule, title }) {
    const input = h("input", {
      type: "radio",
      name: "rule",
      value: rule,
      checked: rule === this.rule,
      onchange: () => this.change(rule),
    });
    return h("label", { class: "option" }, input, h("span", {}, `${title} (${rule})`));
  }

  /** @param {string} rule */
  change(rule) {
    this.draw(rule);
    this.move();
    /** @type {HTMLElement | null} */ (this.place.querySelector("input:checked"))?.focus();
  }

  /** @returns {Step | undefined} undefined if the artifact has no measured policies */
  get step() {
    return this.steps[Number(this.input.value)];
  }

  /** What a policy of the selected kind does with a model. */
  get verb() {
    return controlOf(this.card, this.rule)?.kind === "verified" ? "asks first" : "chooses";
  }

  move() {
    this.show();
    if (this.step) this.onChoice(this.step.choice, this.step.explanation, this.step.point.policy);
  }

  show() {
    if (!this.step) return;
    const { point, choice } = this.step;
    this.input.setAttribute(
      "aria-valuetext",
      `${policyText(point.policy)}: ${percent(point.accuracy.value)} correct, ${usdPer1k(point.cost_usd.value)} per 1,000 requests; ${this.verb} ${modelOf(this.explained.arms, choice.arm)}`,
    );
    this.output.replaceChildren(readout(point, controlOf(this.card, this.rule)));
    this.plot.show({ current: point.policy, rule: this.rule });
    const at = Number(this.input.value);
    this.strip.replaceChildren(...this.runs.map((run) => this.segment(run, at)));
  }

  /** @param {Run} run @param {number} at the step where the slider stands */
  segment(run, at) {
    const isCurrent = run.from <= at && at <= run.to;
    const model = modelOf(this.explained.arms, run.arm);
    return h(
      "span",
      {
        class: isCurrent ? "run is-current" : "run",
        title: model,
        style: { "grid-column": `${run.from + 1} / ${run.to + 2}` },
      },
      model,
    );
  }

  /** @returns {string} where the slider changes the model */
  flips() {
    const [first, ...others] = this.runs.map(({ arm, from }) => ({
      model: modelOf(this.explained.arms, arm),
      policy: policyText(this.steps[from].point.policy),
    }));
    const isVerified = controlOf(this.card, this.rule)?.kind === "verified";
    const does = isVerified ? "is asked first" : "is chosen";
    if (others.length === 0)
      return `For this request, ${first.model} ${does} at every position of the slider.`;
    const changes = others.map(({ model, policy }) => `${model} from ${policy} on`);
    return `For this request, ${first.model} ${does} at the left end, then ${changes.join(", then ")}.`;
  }
}

/** Steps from the cheapest to the most expensive rule.
 * @param {ArtifactCard} card @param {Explained} explained @param {string} rule @returns {Step[]} */
function steps(card, explained, rule) {
  const sign = controlOf(card, rule)?.larger_is_cheaper ? -1 : 1;
  return curves(card)
    .flatMap(({ name, points }) =>
      points.map((point, index) => ({
        point,
        ...parsePolicy(point.policy),
        choice: name === "once" ? explained.choices[index] : verifiedChoice(explained, index),
        explanation:
          name === "once"
            ? explained.explanations[index]
            : (explained.verification?.explanation ?? ""),
      })),
    )
    .filter((step) => step.rule === rule)
    .sort((a, b) => sign * (a.value - b.value));
}

/** What a verified policy asks first, or the choice instead if the answer cannot be verified.
 * @param {Explained} explained
 * @param {number} [index] in the verified frontier; without it, of the requested policy
 * @returns {Selection} */
export function verifiedChoice({ verification, chosen }, index) {
  const first = index === undefined ? verification?.chosen : verification?.first_steps[index];
  return first
    ? { ...first, reason: null, floor: null, isFirstStep: true }
    : (verification?.instead ?? chosen);
}

/** @param {Explained} explained @returns {string} the policy of the request */
export const requested = ({ verification, chosen }) => verification?.requested ?? chosen.policy;

/** @param {Step[]} steps @param {string} start @param {string} rule returns the step to begin at */
function nearest(steps, start, rule) {
  const current = parsePolicy(start);
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

/** @param {FrontierPoint} point @param {Control | undefined} control */
function readout(point, control) {
  const versus = point.versus_best;
  return facts(
    [
      [
        "Policy",
        h(
          "span",
          {},
          readPolicy(point.policy).name ?? control?.title ?? "",
          h("small", { class: "mono", id: "policy-now" }, point.policy),
        ),
      ],
      [
        control?.parameter ?? "",
        // The numbers of the other policies are easy to read in the policy itself.
        control?.unit === "usd" ? usd(parsePolicy(point.policy).value) : null,
      ],
      [
        "Accuracy",
        detailed(
          percent(point.accuracy.value),
          within(point.accuracy_interval, (value) => percent(value)),
        ),
      ],
      [
        "Cost per 1,000 requests",
        detailed(usdPer1k(point.cost_usd.value), within(point.cost_usd_interval, usdPer1k)),
      ],
      [
        "Against the best single model",
        versus &&
          detailed(
            `${points(versus.difference)} points`,
            versus.cost_share === null ? "" : `${percent(versus.cost_share, 0)} of its cost`,
          ),
      ],
    ],
    "facts readouts",
  );
}

/** @param {string} value @param {string} detail */
const detailed = (value, detail) => h("span", {}, value, " ", h("small", {}, detail));
