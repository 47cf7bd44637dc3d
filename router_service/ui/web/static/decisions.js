/** Words for decisions: why a model answered, and how the request ended. */

import { REASONS } from "./session.js";

/** @import { RecentDecision } from "../types" */

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
