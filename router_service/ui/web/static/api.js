/** The gateway's JSON API. URLs are relative to the page, because a proxy may add a prefix. */

import { keyHeader, signOut } from "./session.js";

/**
 * @import {
 *   Advice, ArtifactCard, Explained, ExplainedDecision, Overview, RecentDecisions,
 *   UnavailableOverview,
 * } from "../types"
 */

/** @typedef {"chat" | "responses" | "messages"} Api */

/** @param {Api} api @param {string} body @returns {Promise<Explained>} */
export const explain = (api, body) => json(`ui/api/explain?api=${api}`, { method: "POST", body });

/** @param {Api} api @param {string} body @param {string} policy @returns {Promise<Response>} */
export const ask = (api, body, policy) =>
  good(`ui/api/ask/${api}`, {
    method: "POST",
    body,
    headers: { "x-switchcraft-policy": policy, "content-type": "application/json" },
  });

/** @param {Record<string, string>} query the period and the filters
 * @returns {Promise<Overview | UnavailableOverview>} */
export const overview = (query) => json(`ui/api/traffic/overview?${new URLSearchParams(query)}`);

/** @returns {Promise<RecentDecisions>} */
export const recent = () => json("ui/api/traffic/recent");

/** @param {string} id @returns {Promise<ExplainedDecision>} */
export const decision = (id) => json(`ui/api/traffic/recent/${encodeURIComponent(id)}`);

/** @returns {Promise<any>} the OpenAPI description of the gateway */
export const description = () => json("ui/openapi.json");

/** @type {Promise<ArtifactCard> | undefined} */
let card;

/** The artifact, requested once for the playground and the router view.
 * @returns {Promise<ArtifactCard>} */
export function artifact() {
  card ??= json("ui/api/artifact").catch((error) => {
    card = undefined;
    throw error;
  });
  return card;
}

/** @param {boolean} known whether to compare all models that the router knows
 * @returns {Promise<Advice>} */
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
