/** Live traffic: the latest decisions of the gateway process, read every two seconds. */

import * as api from "./api.js";
import { byId, facts, h, present, showError, spoken, table } from "./dom.js";
import { steps, whyUnverified } from "./steps.js";
import { clock, count, duration, percent, usd, usdPer1k } from "./format.js";

/** @typedef {import("./api.js").Row} Row */

const EVERY_MS = 2000;

/** @type {Map<string, Row>} decisions of all processes that answered so far; each lists only its own */
const known = new Map();
/** @type {Map<string, HTMLElement>} table rows by id, kept in place so that they keep the focus */
const shown = new Map();
const rows = h("tbody");
const summary = h("div", { class: "summary" });
const empty = h("p", { class: "empty" }, "No decisions yet. Send a request to this gateway, or use the playground.");
let isPaused = false;

export function startLive() {
  byId("live-body").append(summary, empty, log());
  byId("pause").addEventListener("click", toggle);
  byId("details").addEventListener("click", (event) => {
    if (event.target === event.currentTarget) closeDetails(); // the backdrop
  });
  poll();
}

function log() {
  const names = ["Time", "Arm or model", "Reason", "Policy", "Latency", "Cost", "Status"];
  return h("table", { class: "log", id: "log", hidden: true },
    h("caption", { class: "spoken" }, "Newest decisions first"),
    h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))), rows);
}

function toggle() {
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  byId("pause").textContent = isPaused ? "Resume" : "Pause";
}

async function poll() {
  if (!isPaused && !document.hidden && !byId("live").hidden) await refresh();
  setTimeout(poll, EVERY_MS);
}

async function refresh() {
  try {
    const { decisions, limit } = await api.recent();
    showError("live-error");
    update(decisions, limit);
  } catch (error) {
    showError("live-error", error);
  }
}

/** @param {Row[]} received @param {number} limit */
function update(received, limit) {
  for (const decision of received) known.set(decision.id, decision);
  const newest = [...known.values()].sort((a, b) => b.created - a.created);
  for (const { id } of newest.splice(limit)) forget(id);
  byId("log").hidden = newest.length === 0;
  empty.hidden = newest.length > 0;
  if (newest.length > 0) summary.replaceChildren(...summarize(newest, limit));
  newest.forEach((decision, index) => {
    if (!shown.has(decision.id)) rows.insertBefore(row(decision), rows.children[index] ?? null);
  });
}

/** @param {string} id */
function forget(id) {
  shown.get(id)?.remove();
  shown.delete(id);
  known.delete(id);
}

/** @param {Row} decision */
function row(decision) {
  const failed = decision.status >= 400 || decision.ending === "failed" || decision.ending === "broken";
  const cell = (/** @type {string} */ name, /** @type {string | HTMLElement} */ value) => h("td", { "data-name": name }, value);
  const open = h("button", { type: "button", class: "link", onclick: () => showDetails(decision.id) }, clock(decision.created), spoken(`, details of ${decision.id}`));
  const element = h("tr", { class: failed ? "failed" : "", "data-id": decision.id },
    h("th", { scope: "row" }, open),
    cell("Arm or model", decision.arm && decision.reason !== "fallback" ? decision.arm : decision.model),
    cell("Reason", reason(decision)), cell("Policy", decision.policy ?? "none"), cell("Latency", duration(decision.latency_s)),
    cell("Cost", decision.actual_cost_usd === null ? "unknown" : usd(decision.actual_cost_usd)),
    cell("Status", `${decision.status} ${decision.ending.replaceAll("_", " ")}`));
  shown.set(decision.id, element);
  return element;
}

/** @param {Row} decision */
function reason({ reason, candidates, unverified }) {
  const asked = candidates === null ? "" : `, ${candidates} ${candidates === 1 ? "model" : "models"} asked`;
  if (unverified !== null) return h("span", { title: whyUnverified(unverified) }, `${reason}, not verified (${unverified.replaceAll("_", " ")})${asked}`);
  return `${reason}${asked}`;
}

/** @param {Row[]} decisions @param {number} limit */
function summarize(decisions, limit) {
  const latencies = decisions.map((decision) => decision.latency_s).sort((a, b) => a - b);
  const costs = decisions.map((decision) => decision.actual_cost_usd).filter((cost) => cost !== null);
  const failed = decisions.filter((decision) => decision.status >= 400).length;
  const at = (/** @type {number} */ share) => duration(latencies[Math.min(latencies.length - 1, Math.floor(share * latencies.length))]);
  return [
    facts([
      ["Decisions", h("span", {}, count(decisions.length), h("small", {}, decisions.length === limit ? " (latest)" : ` (at most ${limit} are kept)`))],
      ["Median latency", at(0.5)], ["95th percentile", at(0.95)],
      ["Cost per 1,000 requests", costs.length ? usdPer1k(costs.reduce((sum, cost) => sum + cost, 0) / costs.length) : "unknown"],
      ["Failed", percent(failed / decisions.length)],
    ], "facts tiles"),
    h("div", { class: "shares" }, shares("Model that answered", decisions.map((decision) => decision.model)), shares("Reason", decisions.map((decision) => decision.reason))),
  ];
}

/** @param {string} title @param {string[]} values */
function shares(title, values) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1);
  const ordered = [...counts].sort((a, b) => b[1] - a[1]);
  return h("section", { class: "card" }, h("h3", { class: "eyebrow" }, title),
    h("ul", { class: "share-list" }, ...ordered.map(([name, number]) => h("li", {},
      h("span", {}, name), h("b", {}, percent(number / values.length, 0)),
      h("span", { class: "bar", "aria-hidden": "true" }, h("i", { style: { "--share": number / values.length } }))))));
}

const dialog = () => /** @type {HTMLDialogElement} */ (byId("details"));
const closeDetails = () => dialog().close();

/** @param {string} id */
async function showDetails(id) {
  const head = h("header", {}, h("h2", { id: "details-title" }, "Decision ", h("code", {}, id)), h("button", { type: "button", class: "quiet", onclick: closeDetails }, "Close"));
  const body = h("div", {}, h("p", { class: "hint" }, "Loading …"));
  dialog().replaceChildren(head, body);
  dialog().showModal();
  try {
    body.replaceChildren(...described(await api.decision(id)));
  } catch (error) {
    body.replaceChildren(h("p", { class: "notice error", role: "alert" }, error instanceof Error ? error.message : String(error)));
  }
}

/** @param {api.Details} details */
function described(details) {
  const { probabilities, cost_usd } = details;
  const arms = Object.entries(probabilities ?? {}).sort((a, b) => b[1] - a[1]);
  return present([
    h("p", {}, details.explanation),
    facts([
      ["Answered by", details.model], ["Arm", details.arm], ["Reason", details.reason], ["Policy", details.policy],
      ["Status", `${details.status}, ${details.ending.replaceAll("_", " ")}`], ["Attempts", details.attempts], ["Deployment", details.deployment],
      ["Latency", duration(details.latency_s)], ["First byte", details.first_byte_s === null ? null : duration(details.first_byte_s)],
      ["Tokens in", details.prompt_tokens], ["Tokens out", details.completion_tokens],
      ["Cost", details.actual_cost_usd === null ? null : usd(details.actual_cost_usd)], ["Tokens read by the router", details.packed_tokens],
    ]),
    ...steps(details.candidates ?? [], details.unverified),
    arms.length > 0 && table("Prediction for each arm", ["Arm", "Probability correct", "USD per 1,000"],
      arms.map(([arm, probability]) => [arm === details.arm ? h("b", {}, arm, " (chosen)") : arm, percent(probability), cost_usd ? usdPer1k(cost_usd[arm]) : ""])),
  ]);
}
