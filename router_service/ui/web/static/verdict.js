/** The model that a policy chooses, why, and what it saves. */

import { facts, h, present } from "./dom.js";
import { whyUnverified } from "./steps.js";
import {
  armLabel,
  controlOf,
  count,
  duration,
  parsePolicy,
  percent,
  usd,
  usdPer1k,
} from "./format.js";
import { policyText } from "./policies.js";

/** @import { ArmView, ArtifactCard, Explained } from "../types" */
/** @import { Selection } from "./slider.js" */

/** What a familiarity counts. */
export const FAMILIARITY = "of the measured requests are as unlike the training data";

/** @param {number} share @returns {string} */
export const familiarity = (share) => percent(share, share < 0.1 ? 1 : 0);

/** @param {ArtifactCard} card @param {Explained} explained @param {Selection} choice
 * @param {string} explanation @param {string} policy that the choice was made for */
export function verdict(card, explained, choice, explanation, policy) {
  const arm = armOf(explained, choice.arm);
  const { overruled } = explained;
  const unverified =
    controlOf(card, policy)?.kind === "verified" && explained.verification?.unverified;
  const isVerified = choice.isFirstStep ?? false;
  const { name, saved } = savings(explained, arm);
  return present([
    unverified &&
      !overruled &&
      h(
        "p",
        { class: "notice" },
        `This answer cannot be verified. ${whyUnverified(unverified)} The policy ${policyText(choice.policy)} chooses one model instead:`,
      ),
    overruled &&
      h(
        "p",
        { class: "notice" },
        `This request goes to ${explained.candidates[0]}: ${overruled}. The router would have chosen:`,
      ),
    explained.unread.length > 0 &&
      h(
        "p",
        { class: "notice" },
        `The router could not read a part of the request (${explained.unread.join(", ")}), so it chooses the model with the highest probability, regardless of the policy.`,
      ),
    explained.is_unfamiliar &&
      h(
        "p",
        { class: "notice" },
        `This request is unlike the router's training data: only ${familiarity(explained.familiarity ?? 0)} ${FAMILIARITY}. The probabilities are uncertain, and lean towards each model's accuracy in training.`,
      ),
    h(
      "p",
      { class: "chosen", "data-arm": arm.arm },
      arm.model,
      arm.model !== arm.arm && h("small", {}, ` (${arm.arm})`),
    ),
    h(
      "p",
      { class: "why" },
      isVerified ? verifying(policy, explained.verification?.expects_text ?? false) : explanation,
    ),
    facts(
      [
        ["Probability of a correct answer", percent(arm.probability)],
        [
          isVerified ? "Cost of this model's answer, per 1,000" : "Cost per 1,000 such requests",
          usdPer1k(arm.cost_usd),
        ],
        // What further answers cost depends on the first one.
        [
          "Compared with one model for all requests",
          isVerified
            ? null
            : h("span", { id: "savings" }, saved, h("small", {}, `against ${name}`)),
        ],
      ],
      "facts tiles",
    ),
    h(
      "p",
      { class: "hint" },
      decidedIn(explained),
      card.is_sandbox && " No model is configured, so a sandbox answers in place of the model.",
    ),
  ]);
}

/** How long the decision took. A prediction from the cache takes no time.
 * @param {Explained} explained */
function decidedIn({ decided_s, first_predicted_s, view }) {
  const tokens = `${count(view.tokens)} tokens`;
  if (first_predicted_s === null) return `Decided in ${duration(decided_s)} from ${tokens}.`;
  const first = first_predicted_s > 0 ? ` It took ${duration(first_predicted_s)} at first.` : "";
  return `Decided in ${duration(decided_s)}, because the prediction from ${tokens} was in the cache.${first}`;
}

/** @param {Explained} explained @param {string} name @returns {ArmView} */
const armOf = (explained, name) =>
  /** @type {ArmView} */ (explained.arms.find((arm) => arm.arm === name));

/** Compares the cost with the baseline's, or with the most probable arm's if there is no baseline.
 * @param {Explained} explained @param {ArmView} arm @returns {{name: string, saved: string}} */
function savings({ arms, baseline }, arm) {
  // Sorted by cost, so that the first of equal probabilities is the cheapest.
  const likeliest = arms.reduce((best, each) =>
    each.probability > best.probability ? each : best,
  );
  const other = arms.find((each) => each.arm === baseline) ?? likeliest;
  if (arm === other) return { name: armLabel(other), saved: "the same model" };
  const share = other.cost_usd > 0 ? 1 - arm.cost_usd / other.cost_usd : 0;
  if (Math.abs(share) < 0.005) return { name: armLabel(other), saved: "the same cost" };
  if (share > 0) return { name: armLabel(other), saved: `saves ${percent(share, 0)}` };
  return {
    name: armLabel(other),
    saved:
      share > -1
        ? `costs ${percent(-share, 0)} more`
        : `costs ${(1 - share).toFixed(1)} times as much`,
  };
}

/** @param {string} policy @param {boolean} expectsText */
const verifying = (policy, expectsText) =>
  `This model answers first. ${expectsText ? "The router expects no tool call here, so a text is delivered at once. If the model calls a tool, a" : "A"} verifier then estimates the probability that the answer is correct. Another model is asked only if that is expected to pay, at ${usd(parsePolicy(policy).value)} for one more correct answer.`;
