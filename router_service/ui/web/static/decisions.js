/** Words for decisions: why a model answered, and how the request ended. */

/** @import { RecentDecision } from "../types" */

/** Why a model answered, by the decision's reason.
 * @type {Record<string, string>} */
const REASONS = {
  threshold: "cheapest above the threshold",
  drift: "cheapest near the best",
  utility: "best value",
  argmax: "most probable, none above the threshold",
  unread: "most probable, a part was not readable",
  unfamiliar: "most accurate, the request is unlike the training data",
  risk: "sure enough for risky tools",
  explored: "drawn at random to learn",
  sticky: "same model as before",
  switched: "a change of model pays",
  pinned: "named by the request",
  chat: "no tools in the request",
  fallback: "the first choice failed",
  undecided: "the router failed",
  continued: "holds the earlier response",
  verified: "accepted by the verifier",
  text: "text, as expected",
};

/** @param {string} reason @returns {string} */
export const reasonText = (reason) => REASONS[reason] ?? reason;

/** @param {RecentDecision} decision */
export const isFailed = ({ status, ending }) =>
  (status >= 400 && ending !== "client_left") || ending === "failed" || ending === "broken";

/** @param {RecentDecision} decision @returns {string} how the request ended */
export function outcome(decision) {
  const { status, ending } = decision;
  if (ending === "client_left") return "client left";
  if (ending === "broken") return "broke off";
  if (!isFailed(decision)) return "answered";
  return status < 500 && status !== 429 ? `refused (${status})` : `failed (${status})`;
}
