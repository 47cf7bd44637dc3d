/** Steps through a verified decision: what was asked, which answers came, how the verifier judged
 * them, and why it went on or stopped. */

import { h, present } from "./dom.js";
import { armLabel, parsePolicy, percent, usd } from "./format.js";
import { policyText, readPolicy } from "./policies.js";
import { answerOf, candidateTable, spentOn, summary, whyUnverified } from "./steps.js";

/** @import { CandidateView } from "../types" */
/** @import { Child } from "./dom.js" */

/** What is known of the request whose answers were verified.
 * @typedef {object} StepFacts
 * @property {string | null} [question] the user's text; only for requests of this page
 * @property {string} policy
 * @property {Record<string, number>} probabilities the router's, by arm
 * @property {Record<string, number>} costs_usd expected costs, by arm
 * @property {string | null} [why] why the answer was delivered and no further model was asked
 * @property {Neighbours} [neighbours] the conversation's other requests */

/** Show the request before and after this one in the conversation, if there is one.
 * @typedef {{before: (() => void) | null, after: (() => void) | null}} Neighbours */

/** @typedef {{title: string, content: Child[]}} Stage */

/** Everything that is known of an answer's verification; nothing if none was asked for.
 * @param {CandidateView[]} candidates @param {string | null} unverified why it is not verified
 * @param {StepFacts} request @returns {Node[]} */
export function verification(candidates, unverified, request) {
  return present([
    unverified !== null &&
      h("p", { class: "notice" }, `Not verified. ${whyUnverified(unverified)}`),
    candidates.length > 0 &&
      h(
        "div",
        { class: "steps" },
        h("p", {}, summary(candidates)),
        walk(candidates, unverified, request),
        candidateTable(candidates),
      ),
  ]);
}

/** @param {CandidateView[]} candidates at least one @param {string | null} unverified
 * @param {StepFacts} request */
function walk(candidates, unverified, request) {
  const stages = [asked(request), ...candidateStages(candidates, unverified, request)];
  const { before = null, after = null } = request.neighbours ?? {};
  let at = 0;
  const place = h("div", { class: "stage", "aria-live": "polite" });
  const position = h("span", { class: "hint" });
  const go = (/** @type {number} */ to) => {
    if (to < 0) before?.();
    else if (to >= stages.length) after?.();
    else {
      at = to;
      show();
      element.scrollIntoView({ block: "nearest" });
    }
  };
  const button = (/** @type {string} */ name, /** @type {1 | -1} */ by) =>
    h("button", { type: "button", "data-by": by, onclick: () => go(at + by) }, name);
  const [previous, next] = [button("Previous", -1), button("Next", 1)];
  const show = () => {
    const { title, content } = stages[at];
    position.textContent = `Step ${at + 1} of ${stages.length}`;
    place.replaceChildren(...present([h("h3", {}, title), ...content]));
    const isLast = at === stages.length - 1;
    previous.textContent = at === 0 && before ? "Previous request" : "Previous";
    next.textContent = isLast && after ? "Next request" : "Next";
    // Not `disabled`, which would lose the focus.
    previous.setAttribute("aria-disabled", String(at === 0 && !before));
    next.setAttribute("aria-disabled", String(isLast && !after));
  };
  const element = h(
    "section",
    {
      class: "walk",
      "aria-label": "Step by step",
      onkeydown: (/** @type {KeyboardEvent} */ event) => walkByKey(event),
    },
    h("div", { class: "walk-bar" }, position, previous, next),
    place,
  );
  show();
  return element;
}

/** Goes one step back or on with an arrow key, in the walk that is in this element, or else from one
 * request of the conversation to the next.
 * @param {KeyboardEvent} event */
export function walkByKey(event) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by === undefined || event.defaultPrevented) return;
  const place = /** @type {HTMLElement} */ (event.currentTarget);
  const found =
    place.querySelector(`.walk [data-by="${by}"]`) ?? place.querySelector(`[data-by="${by}"]`);
  const button = /** @type {HTMLElement | null} */ (found);
  if (button === null) return;
  event.preventDefault();
  button.click();
}

/** @param {StepFacts} request @returns {Stage} */
function asked({ question, policy }) {
  const price = priceOf(policy);
  return {
    title: "The request",
    content: [
      question === undefined
        ? h("p", { class: "hint" }, "A record has no part of what was asked and answered.")
        : h("blockquote", {}, question ?? "The request has no text of a user."),
      h(
        "p",
        {},
        `The policy is ${policyText(policy)}. `,
        price !== null &&
          `One more correct answer is worth ${usd(price)}, so another model is asked if the answer is expected to become better by more than that model's cost.`,
      ),
    ],
  };
}

/** @param {CandidateView[]} candidates @param {string | null} unverified @param {StepFacts} request
 * @returns {Stage[]} */
function candidateStages(candidates, unverified, request) {
  const numbers = [...new Set(candidates.map(({ step }) => step))];
  return numbers.flatMap((number, index) => {
    const arrived = candidates.filter(({ step }) => step === number);
    const later = candidates.filter(({ step }) => step === numbers[index + 1]);
    return [
      {
        title: `${namesOf(arrived)} ${arrived.length > 1 ? "are" : "is"} asked`,
        content: [
          ...arrived.map((candidate) => h("p", {}, whyAsked(candidate, request))),
          ...arrived.map((candidate) =>
            h(
              "div",
              { class: "answer-of" },
              arrived.length > 1 && h("b", {}, armLabel(candidate)),
              ...answerOf(candidate, candidates),
              h("small", {}, spentOn(candidate)),
            ),
          ),
        ],
      },
      judged(candidates, number, later, unverified, request),
    ];
  });
}

/** @param {CandidateView} candidate @param {StepFacts} request */
function whyAsked({ arm, expected_gain: gain }, { policy, probabilities, costs_usd }) {
  const price = priceOf(policy);
  const cost = costs_usd[arm];
  if (gain == null) {
    const likely = probabilities[arm];
    return likely === undefined
      ? "It is asked first."
      : `It is asked first. By the router's estimate, it answers correctly with a probability of ${percent(likely)}, for ${usd(cost)}.`;
  }
  const worth = price === null ? "" : ` This is worth ${usd(gain * price)}`;
  const against = price === null || cost === undefined ? "" : `, and costs about ${usd(cost)}`;
  return `Its answer is expected to add ${(gain * 100).toFixed(1)} points to the probability of a correct answer.${worth}${against}${worth && "."}`;
}

/** What the verifier says after a step, and what follows.
 * @param {CandidateView[]} candidates @param {number} number of the step
 * @param {CandidateView[]} later what is asked next @param {string | null} unverified
 * @param {StepFacts} request @returns {Stage} */
function judged(candidates, number, later, unverified, request) {
  const isLast = later.length === 0;
  const known = candidates.filter(
    ({ step, failure }) => failure == null && (isLast ? step <= number : step === number),
  );
  const accepted = candidates.find((candidate) => candidate.is_accepted);
  const estimates = known.map((candidate) => {
    const p = isLast ? candidate.p_correct : (candidate.first_p_correct ?? candidate.p_correct);
    const name = candidate.model;
    if (p == null) return h("li", {}, `${name}: not judged`);
    const earlier = candidate.first_p_correct;
    const isChanged = isLast && earlier != null && percent(earlier) !== percent(p);
    const likely = `${percent(p)} likely to be correct`;
    return h(
      "li",
      {},
      `${name}: ${likely}${isChanged ? `, after ${percent(earlier)} before the other answers` : ""}`,
      h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { "--share": p } })),
    );
  });
  const invented = known.flatMap(({ ungrounded }) => ungrounded ?? []);
  return {
    title: isLast && accepted ? `${accepted.model}'s answer is delivered` : "The verifier judges",
    content: [
      estimates.length > 0
        ? h("ul", { class: "estimates" }, ...estimates)
        : h("p", {}, "There is no answer to judge."),
      invented.length > 0 &&
        h("p", { class: "failure" }, `Nobody said the value of ${invented.join(", ")}.`),
      h(
        "p",
        {},
        isLast
          ? whyStopped(candidates, unverified, request)
          : known.length === 0
            ? `So ${namesOf(later)} is asked next.`
            : `${whyGoOn(later, request)}, so ${namesOf(later)} ${later.length > 1 ? "are" : "is"} asked next.`,
      ),
    ],
  };
}

/** @param {CandidateView[]} later what is asked next @param {StepFacts} request */
function whyGoOn(later, { policy, costs_usd }) {
  const price = priceOf(policy) ?? Number.POSITIVE_INFINITY;
  const isWorth = later.some(
    ({ arm, expected_gain: gain }) => (gain ?? 0) * price >= (costs_usd[arm] ?? 0),
  );
  return isWorth
    ? "Another answer is worth more than it costs"
    : "No answer is likely enough to be delivered yet";
}

/** @param {CandidateView[]} candidates @param {string | null} unverified @param {StepFacts} request
 * @returns {string} */
function whyStopped(candidates, unverified, { why }) {
  if (unverified !== null) return whyUnverified(unverified);
  return why ?? (candidates.length > 1 ? "It is the likeliest answer." : "It is likely enough.");
}

/** @param {CandidateView[]} candidates */
const namesOf = (candidates) => candidates.map(({ model }) => model).join(" and ");

/** @param {string} policy @returns {number | null} what one more correct answer is worth, in USD */
function priceOf(policy) {
  const { rule, value } = parsePolicy(readPolicy(policy).rule);
  return rule === "verified" && !Number.isNaN(value) ? value : null;
}
