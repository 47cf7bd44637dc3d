/** Words for requests: why a model answered, how a request ended, and what filters call them. */

import { REASONS } from "./session.js";
import { FAILURES } from "./steps.js";

/** @import { ListedRequest, RequestOutcome } from "../types" */

/** Why the gateway refused a request, by the code of its error.
 * @type {Record<string, string>} */
const REFUSALS = {
  rate_limit_exceeded: "rate limit reached",
  insufficient_quota: "budget spent",
  budget_unknown: "budget could not be read",
  too_many_requests: "too many requests of this key at once",
  overloaded: "gateway at its limit",
  decisions_queued: "too many decisions were waiting",
  shutting_down: "gateway was shutting down",
  database_unavailable: "database did not answer",
  store_unavailable: "store did not answer",
  internal_error: "error in the gateway",
  context_length_exceeded: "longer than every model's context window",
  unsupported_feature: "no model supports what it needs",
  no_routed_model: "no configured model is routed",
  model_not_found: "unknown model",
  model_not_allowed: "model not allowed for this key",
  policy_not_allowed: "policy not allowed for this key",
  invalid_policy: "policy that cannot be used",
  cost_limit_too_low: "no model fits its cost limit",
  invalid_json: "body that is not JSON",
  missing_required_parameter: "required field missing",
  request_too_large: "body too large",
  request_timeout: "body arrived too slowly",
  unsupported_content_encoding: "compressed body",
  not_served: "unknown endpoint",
  method_not_allowed: "method not allowed",
  object_not_found: "unknown stored object",
  response_not_found: "unknown stored response",
  previous_response_not_found: "unknown stored response",
  response_held_elsewhere: "another provider stores the response",
  deadline_exceeded: "its time limit was over",
  upstream_timeout: "upstream did not answer in time",
  upstream_unavailable: "no upstream could be asked",
};

/** Codes of requests with a mistake, beside those that begin with `invalid_`. */
const MISTAKES = /^(empty|too_many|duplicate|schema|nested|integer|unknown|mutually|thread)_/;

/** Failures that only this list needs words for.
 * @type {Record<string, string>} */
const UPSTREAM_FAILURES = {
  status: "error of the upstream",
  timeout: "no answer in time",
  refused: "refused by the upstream",
};

/** @type {Record<RequestOutcome, string>} */
export const OUTCOMES = {
  answered: "answered",
  failed: "failed",
  refused: "refused",
  left: "client left",
};

/** What filters call requests without a name.
 * @type {Record<string, Record<string, string>>} */
const UNNAMED = {
  model: { none: "no model (refused)" },
  policy: { none: "not routed" },
  key: { "": "without a key" },
  team: { "": "without a team" },
};

/** @param {string} reason @returns {string} */
export const reasonText = (reason) => REASONS[reason] ?? reason;

/** @param {string} filter @param {string} name @returns {string} */
export const nameText = (filter, name) => UNNAMED[filter]?.[name] ?? name;

/** @param {ListedRequest} request */
export const isFailed = ({ outcome }) => outcome === "failed" || outcome === "refused";

/** @param {ListedRequest} request @returns {string} how the request ended */
export function outcomeText({ outcome, ending, status }) {
  if (ending === "broken") return "broke off";
  return outcome === "failed" || outcome === "refused"
    ? `${OUTCOMES[outcome]} (${status})`
    : OUTCOMES[outcome];
}

/** @param {ListedRequest} request @returns {string} why it was refused, failed or answered */
export function causeText({ outcome, reason, error, candidates, status, ending }) {
  if (reason === null) {
    if (outcome === "left") return "before a model was chosen";
    if (error === null) return status === 503 ? "gateway not available" : "no details";
    if (error in REFUSALS) return REFUSALS[error];
    const isMistake = error.startsWith("invalid_") || MISTAKES.test(error);
    return isMistake ? "invalid request" : error.replaceAll("_", " ");
  }
  const asked = `${candidates || "no"} ${candidates === 1 ? "model" : "models"} asked`;
  const isAccepted = outcome === "answered" || reason !== "verified";
  const found = [
    ...(isAccepted ? [reasonText(reason)] : []),
    ...(candidates === null ? [] : [asked]),
  ];
  const text = found.join(", ") || asked;
  return outcome === "failed" ? `${failureText(error, ending)}; ${text}` : text;
}

/** @param {string | null} kind of an upstream's failure; null if its error was passed on
 * @param {string} ending */
function failureText(kind, ending) {
  if (kind === null) return ending === "broken" ? "incomplete answer" : "error of the upstream";
  return UPSTREAM_FAILURES[kind] ?? FAILURES[kind] ?? kind.replaceAll("_", " ");
}
