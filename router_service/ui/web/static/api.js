/** The gateway's JSON API. URLs are relative to the page, because a proxy may add a prefix. */

import { keyHeader, signOut } from "./session.js";

/** @typedef {"chat" | "responses" | "messages"} Api Chat Completions, Responses, or Anthropic's Messages */
/** @typedef {{slot: string | null, text: string, tokens: number, is_cut_mark: boolean}} Piece */
/** @typedef {{slot: string, tokens: number, whole_tokens: number, at_least: boolean}} Extent */
/** @typedef {{pieces: Piece[], extents: Extent[], features: Record<string, number>, tokens: number, budget_tokens: number}} View */
/** @typedef {{policy: string, arm: string, reason: string, floor: number}} Choice */
/** @typedef {{arm: string, model: string, probability: number, cost_usd: number}} Arm */
/** @typedef {{policy: string, arm: string}} FirstStep */
/** @typedef {{requested: string | null, unverified: string | null, expects_text: boolean, instead: Choice, explanation: string, chosen: FirstStep | null, first_steps: FirstStep[]}} Verification */
/** @typedef {{arm: string, model: string, step: number, is_accepted: boolean, p_correct?: number | null, first_p_correct?: number, cost_usd?: number | null, seconds: number, failure?: string | null, calls?: number | null, written?: string[], text?: string, same_as?: string, ungrounded?: string[]}} Candidate the answer's beginning is known only for requests of this page */
/** @typedef {{reason: string, candidates: string[], chosen: Choice, explanation: string, familiarity: number | null, is_unfamiliar: boolean, baseline: string | null, arms: Arm[], excluded: string[], choices: Choice[], explanations: string[], verification: Verification | null, view: View, decided_s: number, unread: string[]}} Explained */
/** @typedef {{value: number, stderr: number, n: number}} Measure */
/** @typedef {[number, number]} Interval */
/** @typedef {{policy: string, accuracy: Measure, cost_usd: Measure, accuracy_interval: Interval | null, cost_usd_interval: Interval | null, versus_best: {difference: number, difference_interval: Interval, cost_share: number | null, cost_share_interval: Interval | null} | null}} Point */
/** @typedef {{requests: number, errors: number, unpriced: number, cost_usd: number, compared_usd: number, baseline_usd: number, prompt_tokens: number, completion_tokens: number, unfamiliar: number, p50_s: number | null, p95_s: number | null}} Traffic sums over requests, as in router_service/ui/traffic.py */
/** @typedef {Traffic & {name: string}} NamedTraffic of one model, policy or key */
/** @typedef {{step_s: number, points: (Traffic & {start: number})[], total: Traffic, models: NamedTraffic[], policies: NamedTraffic[], keys: NamedTraffic[], baseline_model: string | null, unavailable?: undefined}} Overview */
/** @typedef {{id: string, created: number, key: string | null, model: string, arm: string | null, reason: string, policy: string | null, status: number, ending: string, latency_s: number, first_byte_s: number | null, actual_cost_usd: number | null, unverified: string | null, candidates: number | null}} Row */
/** @typedef {{arms: string[], kind: "once" | "verified", point: Point}} PoolFigures of some arms with one rule */
/** @typedef {{arms: string[], best_single: string, queries: number, searched: number, pools: number, efficient: PoolFigures[], recommended: {kind: "once" | "verified", figures: PoolFigures, unseen_difference: Measure}[], cost_share: number, has_verified: boolean}} Advice see router_service/core/advice.py */
/** @typedef {Omit<Row, "candidates"> & {policy_name: string | null, candidates: Candidate[] | null, attempts: number, deployment: string | null, release: string | null, probabilities: Record<string, number> | null, cost_usd: Record<string, number> | null, packed_tokens: number | null, familiarity: number | null, prompt_tokens: number | null, completion_tokens: number | null, stream: boolean, explanation: string, threshold: number | null, best_arm: string | null, qualifying_arms: string[], labels: Record<string, string>}} Details */
/** @typedef {any} Card see ArtifactCard in router_service/ui/pages.py */

/** @param {Api} api @param {string} body @returns {Promise<Explained>} */
export const explain = (api, body) => json(`ui/api/explain?api=${api}`, { method: "POST", body });

/** @param {Api} api @param {string} body @param {string} policy @returns {Promise<Response>} */
export const ask = (api, body, policy) =>
  good(`ui/api/ask/${api}`, {
    method: "POST",
    body,
    headers: { "x-switchcraft-policy": policy, "content-type": "application/json" },
  });

/** @param {Record<string, string>} query the period and the filters @returns {Promise<Overview | {unavailable: string}>} */
export const overview = (query) => json(`ui/api/traffic/overview?${new URLSearchParams(query)}`);

/** @returns {Promise<{limit: number, decisions: Row[]}>} */
export const recent = () => json("ui/api/traffic/recent");

/** @param {string} id @returns {Promise<Details>} */
export const decision = (id) => json(`ui/api/traffic/recent/${encodeURIComponent(id)}`);

/** @returns {Promise<any>} the OpenAPI description of the gateway */
export const description = () => json("ui/openapi.json");

/** @type {Promise<Card> | undefined} */
let card;

/** The artifact, requested once for the playground and the router view.
 * @returns {Promise<Card>} */
export function artifact() {
  card ??= json("ui/api/artifact").catch((error) => {
    card = undefined;
    throw error;
  });
  return card;
}

/** @param {boolean} known whether to compare all models that the router knows @returns {Promise<Advice>} */
export const advice = (known) => json(`ui/api/advice?known=${known}`);

/** @param {string} path @param {RequestInit} [options] */
const json = async (path, options) => (await good(path, options)).json();

/** @param {string} path @param {RequestInit} [options] */
async function good(path, options = {}) {
  const response = await fetch(path, {
    ...options,
    headers: { ...options.headers, ...keyHeader() },
  }).catch(() => {
    throw new Error("The gateway does not answer. Check that it is running.");
  });
  if (response.status === 401) signOut(true);
  if (!response.ok) throw new Error(await reason(response));
  return response;
}

/** @param {Response} response */
async function reason(response) {
  const body = await response.json().catch(() => null);
  const where = body?.error?.param ? ` (at ${body.error.param})` : "";
  return body?.error?.message
    ? body.error.message + where
    : `The gateway answered with status ${response.status}. Its log has the cause.`;
}
