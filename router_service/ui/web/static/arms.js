/** The probability of each arm as a bar, its cost, and the threshold that it must reach. */

import { h, spoken } from "./dom.js";
import { percent, usdPer1k } from "./format.js";
import { policyText } from "./policies.js";

/** @import { ArmView, Explained } from "../types" */
/** @import { Selection } from "./slider.js" */

/** @param {Explained} explained @param {Selection} choice */
export function arms(explained, choice) {
  const { floor } = choice;
  return h(
    "div",
    {},
    h(
      "table",
      { class: "arms", style: { "--floor": Math.max(0, floor ?? 0) } },
      h("caption", {}, caption(choice)),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ...["Model", "Probability of a correct answer", "Per 1,000 requests"].map((name) =>
            h("th", { scope: "col" }, name),
          ),
        ),
      ),
      h("tbody", {}, ...explained.arms.map((arm) => row(arm, choice))),
    ),
    explained.excluded.length > 0 &&
      h("p", { class: "hint" }, `Cannot serve this request: ${explained.excluded.join(", ")}.`),
  );
}

/** @param {Selection} choice */
function caption({ floor, policy }) {
  if (floor === null) return "Sorted by cost. This policy has no minimum probability.";
  const line =
    floor <= 0
      ? "every probability is enough"
      : `the line marks the minimum probability that the policy ${policyText(policy)} demands: ${percent(floor)}`;
  return `Sorted by cost; ${line}.`;
}

/** @param {ArmView} arm @param {Selection} choice */
function row(arm, choice) {
  const isChosen = arm.arm === choice.arm;
  const { floor } = choice;
  const passes = floor === null || arm.probability >= floor - 1e-9;
  const state = isChosen
    ? choice.isFirstStep
      ? "asked first"
      : "chosen"
    : passes
      ? "passes"
      : "below the threshold";
  return h(
    "tr",
    { class: isChosen ? "is-chosen" : passes ? "passes" : "fails", "data-arm": arm.arm },
    h(
      "th",
      { scope: "row" },
      arm.model,
      arm.model !== arm.arm && h("small", {}, ` (${arm.arm})`),
      spoken(`, ${state}`),
    ),
    h(
      "td",
      { class: "probability" },
      h(
        "span",
        { class: floor === null ? "bar" : "bar has-floor", "aria-hidden": "true" },
        h("i", { style: { "--share": arm.probability } }),
      ),
      h("b", {}, percent(arm.probability)),
    ),
    h("td", { class: "number" }, usdPer1k(arm.cost_usd)),
  );
}
