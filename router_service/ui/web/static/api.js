/** The gateway's JSON API. URLs are relative to the page, because a proxy may add a prefix. */

import { keyHeader, signOut } from "./session.js";

/**
 * @import {
 *   Advice, ArtifactCard, ComparedModel, CreatedKey, Explained, ExplainedDecision, KeyPage, KeyView, LiveTraffic,
 *   Overview, RequestDetails, RequestNames, Rotation, TaskAdvice, TeamPage, TeamView,
 *   Unavailable,
 * } from "../types"
 */

/** @typedef {"chat" | "responses" | "messages"} Api */

/** @param {Api} api @param {string} body @returns {Promise<Explained>} */
export const explain = (api, body) => json(`ui/api/explain?api=${api}`, { method: "POST", body });

/** @param {Api} api @param {string} body @param {string} policy @param {AbortSignal} signal
 * @returns {Promise<Response>} */
export const ask = (api, body, policy, signal) =>
  good(`ui/api/ask/${api}`, {
    method: "POST",
    body,
    signal,
    headers: { "x-switchcraft-policy": policy, "content-type": "application/json" },
  });

/** @param {Record<string, string>} query the period and the filters
 * @returns {Promise<Overview | Unavailable>} */
export const overview = (query) => json(`ui/api/traffic/overview?${new URLSearchParams(query)}`);

/** @returns {Promise<KeyView | null>} the caller's own key; null if it is not in the database */
export const account = () => json("ui/api/traffic/account");

/** @param {Record<string, string>} query the filters, the place and the number of requests
 * @returns {Promise<LiveTraffic | Unavailable>} */
export const requests = (query) => json(`ui/api/traffic/requests?${new URLSearchParams(query)}`);

/** @returns {Promise<RequestNames | Unavailable>} the names that filters offer */
export const requestNames = () => json("ui/api/traffic/requests/names");

/** @param {string} id @returns {Promise<RequestDetails>} */
export const request = (id) => json(`ui/api/traffic/requests/${encodeURIComponent(id)}`);

/** @param {string} id @returns {Promise<ExplainedDecision>} */
export async function decision(id) {
  const { decision, missing } = await request(id);
  if (decision === null) throw new Error(missing ?? "There is no decision.");
  return decision;
}

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

/** @returns {Promise<ComparedModel[]>} */
export const comparisons = () => json("ui/api/comparisons");

/** @param {string} task a kind of whole tasks @returns {Promise<TaskAdvice>} */
export const taskAdvice = (task) => json(`ui/api/tasks/${task}`);

/** @param {Record<string, string>} query filters, `after` and `limit` @returns {Promise<KeyPage>} */
export const keys = (query) => json(`admin/keys?${new URLSearchParams(query)}`);

/** @param {string} name @returns {Promise<KeyView>} */
export const key = (name) => json(`admin/keys/${segment(name)}`);

/** @param {string} name @returns {Promise<TeamView>} */
export const team = (name) => json(`admin/teams/${segment(name)}`);

/** @param {Record<string, unknown>} key @returns {Promise<CreatedKey>} */
export const createKey = (key) => send("POST", "admin/keys", key);

/** @param {string} name @param {Record<string, unknown>} changes @returns {Promise<KeyView>} */
export const changeKey = (name, changes) => send("PATCH", `admin/keys/${segment(name)}`, changes);

/** @param {string} name @param {Rotation} rotation @returns {Promise<CreatedKey>} */
export const rotateKey = (name, rotation) =>
  send("POST", `admin/keys/${segment(name)}/rotate`, rotation);

/** @param {string} name @returns {Promise<unknown>} */
export const revokeKey = (name) => good(`admin/keys/${segment(name)}`, { method: "DELETE" });

/** @param {Record<string, string>} query filters, `after` and `limit` @returns {Promise<TeamPage>} */
export const teams = (query) => json(`admin/teams?${new URLSearchParams(query)}`);

/** @param {Record<string, unknown>} team @returns {Promise<TeamView>} */
export const createTeam = (team) => send("POST", "admin/teams", team);

/** @param {string} name @param {Record<string, unknown>} changes @returns {Promise<TeamView>} */
export const changeTeam = (name, changes) => send("PATCH", `admin/teams/${segment(name)}`, changes);

/** @param {string} name @returns {Promise<unknown>} */
export const deleteTeam = (name) => good(`admin/teams/${segment(name)}`, { method: "DELETE" });

/** An error that the gateway has answered. */
export class RefusedError extends Error {
  /** @param {string} problem @param {string | null} field what it is about */
  constructor(problem, field) {
    super(problem + (field ? ` (at ${field})` : ""));
    this.problem = problem;
    this.field = field;
  }
}

/** @param {string} name @returns {string} a segment of a path; `.` and `..` would be removed */
const segment = (name) => encodeURIComponent(name);

/** @param {string} method @param {string} path @param {unknown} body */
const send = (method, path, body) =>
  json(path, {
    method,
    body: JSON.stringify(body),
    headers: { "content-type": "application/json" },
  });

/** @param {string} path @param {RequestInit} [options] */
const json = async (path, options) => (await good(path, options)).json();

/** @param {string} path @param {RequestInit} [options] */
async function good(path, options = {}) {
  const response = await fetch(path, {
    ...options,
    headers: { ...options.headers, ...keyHeader() },
  }).catch((error) => {
    if (options.signal?.aborted) throw error;
    throw new Error("The gateway does not answer. Check that it is running.");
  });
  if (response.status === 401) signOut(true);
  if (!response.ok) throw await refusal(response);
  return response;
}

/** @param {Response} response */
async function refusal(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message
    ? new RefusedError(body.error.message, body.error.param)
    : new Error(`The gateway answered with status ${response.status}. Its log has the cause.`);
}
