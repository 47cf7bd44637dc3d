/** The arm that a policy chooses, and the reason in words. */

import { facts, h, present } from "./dom.js";
import { whyUnverified } from "./steps.js";
import { count, duration, parsePolicy, percent, usd, usdPer1k } from "./format.js";

/** @typedef {import("./api.js").Explained} Explained */
/** @typedef {import("./api.js").Choice} Choice */
/** @typedef {import("./api.js").Arm} Arm */

/** Reasons why the gateway does not use the arm that the router chose. */
const OVERRULED = {
  pinned: "The request names a configured model, so it is not routed.",
  chat: "The request has no tools; only tool calls are routed.",
  continued: "The request continues a stored response; only the provider that stored it can continue it.",
  undecided: "The router failed; the most expensive arm answers.",
};

/** @param {Explained} explained @param {Choice} choice @param {string} policy that the choice was made for */
export function verdict(explained, choice, policy) {
  const arm = armOf(explained, choice.arm);
  const likeliest = mostProbable(explained.arms);
  const overruled = /** @type {Record<string, string>} */ (OVERRULED)[explained.reason];
  const unverified = parsePolicy(policy).rule === "verified" && explained.verification?.unverified;
  return present([
    unverified && !overruled && h("p", { class: "notice" }, `This answer cannot be verified. ${whyUnverified(unverified)} The policy ${choice.policy} chooses one model instead:`),
    overruled && h("p", { class: "notice" }, `${overruled} It goes to ${explained.candidates[0]}. The router would have chosen:`),
    h("p", { class: "chosen", "data-arm": arm.arm }, arm.arm),
    h("p", { class: "why" }, reason(explained, choice, likeliest)),
    facts([
      ["Probability of a correct answer", percent(arm.probability)],
      ["Expected cost", h("span", {}, usdPer1k(arm.cost_usd), h("small", {}, " per 1,000 requests"))],
      ["Compared with the most probable arm", beside(arm, likeliest)],
      ["Tokens read by the router", `${count(explained.view.tokens)} of ${count(explained.view.budget_tokens)}`],
      ["Decision time", duration(explained.decided_s)],
    ]),
  ]);
}

/** @param {Explained} explained @param {string} name @returns {Arm} */
const armOf = (explained, name) => /** @type {Arm} */ (explained.arms.find((arm) => arm.arm === name));

/** @param {Arm[]} arms sorted by cost, so that the first of equals is the cheapest */
const mostProbable = (arms) => arms.reduce((best, arm) => (arm.probability > best.probability ? arm : best));

/** @param {Arm} arm @param {Arm} likeliest */
function beside(arm, likeliest) {
  if (arm === likeliest) return "the same arm";
  const times = likeliest.cost_usd / arm.cost_usd;
  if (!Number.isFinite(times)) return "free";
  return times >= 1 ? `${times.toFixed(times < 10 ? 1 : 0)} × cheaper` : `${(1 / times).toFixed(1)} × more expensive`;
}

/** @param {Explained} explained @param {Choice} choice @param {Arm} likeliest */
function reason(explained, choice, likeliest) {
  const { value } = parsePolicy(choice.policy);
  const passing = explained.arms.filter((arm) => arm.probability >= choice.floor - 1e-9).length;
  const among = passing === 1 ? "The only arm" : `The cheapest of ${passing} arms`;
  switch (choice.reason) {
    case "drift": return choice.arm === likeliest.arm ? `The most probable arm, and the cheapest of ${passing} arms within ${+(value * 100).toFixed(2)} percentage points of it.` : `${among} within ${+(value * 100).toFixed(2)} percentage points of the most probable arm, ${likeliest.arm} (${percent(likeliest.probability)}).`;
    case "threshold": return `${among} with a predicted probability of at least ${percent(value)}.`;
    case "utility": return `The highest probability for its cost, with ${usd(value)} for one more correct answer.`;
    case "verified": return `Its answer is checked: the verifier estimates the probability that it is correct. Another model is asked only if this is expected to pay, with ${usd(value)} for one more correct answer.`;
    case "risk": return passing > 0 ? `The request offers tools that can do harm, so the arm must reach ${percent(choice.floor)}. The policy chooses among the ${passing} that do.` : `The request offers tools that can do harm, so the arm must reach ${percent(choice.floor)}. None does, so the most probable arm is chosen.`;
    case "argmax": return `No arm reaches ${percent(value)}, so the most probable arm is chosen.`;
    default: return `The router could not read a part of the request (${explained.unread.join(", ")}). It chooses the most probable arm for the rest, regardless of the policy.`;
  }
}
