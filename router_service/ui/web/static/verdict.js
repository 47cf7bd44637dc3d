/** Which arm a policy chooses, and why, in words. */

import { facts, h, present } from "./dom.js";
import { count, duration, parsePolicy, percent, usdPer1k } from "./format.js";

/** @typedef {import("./api.js").Explained} Explained */
/** @typedef {import("./api.js").Choice} Choice */
/** @typedef {import("./api.js").Arm} Arm */

/** Why the gateway goes by no arm that the router chose. */
const OVERRULED = {
  pinned: "The request names a model of the pool, so that the router is not asked.",
  chat: "The request has no tools, of which alone the router knows.",
  continued: "The request goes on from a response, and only who holds that can answer.",
  undecided: "The router failed: the dearest arm would answer.",
};

/** @param {Explained} explained @param {Choice} choice */
export function verdict(explained, choice) {
  const arm = armOf(explained, choice.arm);
  const likeliest = mostProbable(explained.arms);
  const overruled = /** @type {Record<string, string>} */ (OVERRULED)[explained.reason];
  return present([
    overruled && h("p", { class: "notice" }, `${overruled} It goes to ${explained.candidates[0]}. What the router would have chosen:`),
    h("p", { class: "chosen", "data-arm": arm.arm }, arm.arm),
    h("p", { class: "why" }, reason(explained, choice, likeliest)),
    facts([
      ["Right with", percent(arm.probability)],
      ["Expected cost", h("span", {}, usdPer1k(arm.cost_usd), h("small", {}, " per 1,000"))],
      ["Beside the most probable arm", beside(arm, likeliest)],
      ["Tokens read", `${count(explained.view.tokens)} of ${count(explained.view.budget_tokens)}`],
      ["Decided in", duration(explained.decided_s)],
    ]),
  ]);
}

/** @param {Explained} explained @param {string} name @returns {Arm} */
const armOf = (explained, name) => /** @type {Arm} */ (explained.arms.find((arm) => arm.arm === name));

/** @param {Arm[]} arms by rising cost, so that the first of equals is the cheapest */
const mostProbable = (arms) => arms.reduce((best, arm) => (arm.probability > best.probability ? arm : best));

/** @param {Arm} arm @param {Arm} likeliest */
function beside(arm, likeliest) {
  if (arm === likeliest) return "the same";
  const times = likeliest.cost_usd / arm.cost_usd;
  if (!Number.isFinite(times)) return "free instead";
  return times >= 1 ? `${times.toFixed(times < 10 ? 1 : 0)} × cheaper` : `${(1 / times).toFixed(1)} × dearer`;
}

/** @param {Explained} explained @param {Choice} choice @param {Arm} likeliest */
function reason(explained, choice, likeliest) {
  const { value } = parsePolicy(choice.policy);
  const passing = explained.arms.filter((arm) => arm.probability >= choice.floor - 1e-9).length;
  const among = passing === 1 ? "The only arm" : `The cheapest of ${passing} arms`;
  switch (choice.reason) {
    case "drift": return choice.arm === likeliest.arm ? `The most probable arm, and the cheapest of ${passing} within ${+(value * 100).toFixed(2)} points of it.` : `${among} within ${+(value * 100).toFixed(2)} points of the most probable, ${likeliest.arm} at ${percent(likeliest.probability)}.`;
    case "threshold": return `${among} predicted to be right with at least ${percent(value)}.`;
    case "argmax": return `No arm reaches ${percent(value)}, so the most probable one.`;
    default: return `Part of the request could not be read (${explained.unread.join(", ")}), so the most probable arm for what could, whatever the policy.`;
  }
}
