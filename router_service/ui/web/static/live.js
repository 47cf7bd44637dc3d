/** Live traffic: the latest decisions of the gateway process, read every two seconds. */

import * as api from "./api.js";
import { isFailed, outcome, reasonText } from "./decisions.js";
import { DecisionDialog } from "./details.js";
import { byId, facts, h, shortened, showError, spoken } from "./dom.js";
import { clock, count, duration, percent, usd, usdPer1k } from "./format.js";
import { latencyPlot } from "./latencies.js";
import { policyLabel, policyText } from "./policies.js";
import { whyUnverified } from "./steps.js";

/** @import { RecentDecision, Session } from "../types" */

/** @typedef {"model" | "policy" | "status" | "reason" | "key"} Filter */

const EVERY_MS = 2000;

/** Names of the filters, and the value that a decision has for each.
 * @type {Record<Filter, {name: string, of: (decision: RecentDecision) => string}>} */
const FILTERS = {
  model: { name: "Model", of: ({ model }) => model },
  policy: { name: "Policy", of: ({ policy }) => (policy ? policyText(policy) : "not routed") },
  reason: { name: "Reason", of: ({ reason }) => reasonText(reason) },
  status: { name: "Status", of: outcome },
  key: { name: "Key", of: ({ key }) => key ?? "without a key" },
};

export class LiveTraffic {
  /** Decisions of all processes that have answered so far, by id; each process lists its own.
   * @type {Map<string, RecentDecision>} */
  known = new Map();
  /** Table rows by id, kept in place so that they keep the focus.
   * @type {Map<string, HTMLElement>} */
  rows = new Map();
  /** The chosen value of each filter that is set.
   * @type {Partial<Record<Filter, string>>} */
  chosen = {};
  /** The decisions that match the filters, newest first.
   * @type {RecentDecision[]} */
  matching = [];
  /** How many decisions a process keeps; 0 before the first answer. */
  limit = 0;
  isPaused = false;

  details = new DecisionDialog();
  pause = byId("pause");
  summary = h("div", { class: "summary" });
  filters = h("div", { class: "filters", role: "group", "aria-label": "Filters" });
  plot = h("div", { class: "plot" });
  chart = h(
    "section",
    { class: "card live-axis" },
    h("h3", { class: "eyebrow" }, "Latency over time"),
    this.plot,
  );
  empty = h("p", { class: "empty" });
  tbody = h("tbody");

  /** @param {Session} session */
  constructor(session) {
    this.session = session;
    this.showsKeys = session.is_admin && session.key !== null;
    const names = /** @type {Filter[]} */ (Object.keys(FILTERS));
    this.selects = names
      .filter((name) => name !== "key" || this.showsKeys)
      .map((name) => {
        const onchange = () => this.choose(name, select.value);
        const select = h("select", { id: `live-${name}`, class: "control", onchange });
        return { name, select };
      });
    this.log = this.table();
  }

  /** Shows the view, and keeps it up to date. */
  start() {
    const { workers, is_admin, key } = this.session;
    const place =
      workers > 1 ? `the worker process that answers this page, one of ${workers}` : "this gateway";
    byId("live-lead").textContent =
      `The latest decisions of ${place}${is_admin ? "" : `, for the key ${key}`}. Prompts and answers are not shown.`;
    for (const { name, select } of this.selects)
      this.filters.append(
        h("span", { class: "filter" }, h("label", { for: select.id }, FILTERS[name].name), select),
      );
    byId("live-body").append(this.summary, this.filters, this.chart, this.empty, this.log);
    this.pause.addEventListener("click", () => this.toggle());
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.show();
    this.poll();
  }

  table() {
    const names = ["Time", "Model", "Reason", "Policy", "Key", "Latency", "Cost", "Status"].filter(
      (name) => name !== "Key" || this.showsKeys,
    );
    return h(
      "table",
      { class: "log", id: "log", hidden: true },
      h("caption", { class: "spoken" }, "Newest decisions first"),
      h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))),
      this.tbody,
    );
  }

  toggle() {
    this.isPaused = !this.isPaused;
    this.pause.setAttribute("aria-pressed", String(this.isPaused));
    this.pause.textContent = this.isPaused ? "Resume" : "Pause";
  }

  async poll() {
    if (!this.isPaused && !document.hidden && !byId("live").hidden) await this.refresh();
    setTimeout(() => this.poll(), EVERY_MS);
  }

  async refresh() {
    try {
      const { limit, decisions } = await api.recent();
      showError("live-error");
      this.limit = limit;
      for (const decision of decisions) this.known.set(decision.id, decision);
      this.show();
    } catch (error) {
      showError("live-error", error);
    }
  }

  /** @param {Filter} name @param {string} value empty for all */
  choose(name, value) {
    if (value) this.chosen[name] = value;
    else delete this.chosen[name];
    this.show();
  }

  /** Shows the known decisions, and forgets those beyond the limit. */
  show() {
    const newest = [...this.known.values()].sort((a, b) => b.created - a.created);
    for (const { id } of newest.splice(this.limit || newest.length)) this.forget(id);
    this.matching = newest.filter((decision) =>
      this.selects.every(
        ({ name }) =>
          this.chosen[name] === undefined || FILTERS[name].of(decision) === this.chosen[name],
      ),
    );
    const isEmpty = this.matching.length === 0;
    this.log.hidden = this.chart.hidden = this.summary.hidden = isEmpty;
    this.empty.hidden = !isEmpty;
    this.empty.textContent =
      newest.length > 0
        ? "No decision matches these filters."
        : "No decisions yet. They appear here as soon as this gateway answers a request.";
    this.filters.hidden = newest.length === 0;
    for (const { name, select } of this.selects) this.fill(select, name, newest);
    if (!isEmpty) this.summary.replaceChildren(summarize(this.matching, newest.length, this.limit));
    this.place(newest);
    this.draw();
  }

  /** @param {string} id */
  forget(id) {
    this.rows.get(id)?.remove();
    this.rows.delete(id);
    this.known.delete(id);
  }

  /** Fills a filter with the values that occur, and the number of decisions that have each.
   * @param {HTMLSelectElement} select @param {Filter} name @param {RecentDecision[]} decisions */
  fill(select, name, decisions) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const decision of decisions) {
      const value = FILTERS[name].of(decision);
      counts.set(value, (counts.get(value) ?? 0) + 1);
    }
    const chosen = this.chosen[name];
    if (chosen !== undefined && !counts.has(chosen)) counts.set(chosen, 0);
    const options = [
      h("option", { value: "" }, "all"),
      ...[...counts]
        .sort((a, b) => b[1] - a[1])
        .map(([value, number]) =>
          h("option", { value, selected: value === chosen }, `${value} (${number})`),
        ),
    ];
    // An open list would close if its options were replaced by the same ones.
    if (select.textContent !== options.map(({ textContent }) => textContent).join(""))
      select.replaceChildren(...options);
  }

  /** Puts the rows of these decisions in order, and shows those that match.
   * @param {RecentDecision[]} newest */
  place(newest) {
    const wanted = new Set(this.matching);
    for (const [at, decision] of newest.entries()) {
      const row = this.rows.get(decision.id) ?? this.row(decision);
      row.hidden = !wanted.has(decision);
      const present = this.tbody.children[at];
      if (present !== row) this.tbody.insertBefore(row, present ?? null);
    }
  }

  /** @param {RecentDecision} decision */
  row(decision) {
    const { id, created, model, policy, key, latency_s, actual_cost_usd } = decision;
    const cell = (/** @type {string} */ name, /** @type {string | HTMLElement} */ value) =>
      h("td", { "data-name": name }, value);
    const open = h(
      "button",
      { type: "button", class: "link", onclick: () => this.details.show(id) },
      clock(created),
      spoken(`, details of ${id}`),
    );
    const row = h(
      "tr",
      { class: isFailed(decision) ? "failed" : "", "data-id": id },
      h("th", { scope: "row" }, open),
      cell("Model", model),
      cell("Reason", reason(decision)),
      cell("Policy", policy ? policyLabel(policy) : "not routed"),
      this.showsKeys && cell("Key", key === null ? "none" : shortened(key)),
      cell("Latency", duration(latency_s)),
      cell("Cost", actual_cost_usd === null ? "unknown" : usd(actual_cost_usd)),
      cell("Status", outcome(decision)),
    );
    this.rows.set(id, row);
    return row;
  }

  draw() {
    const width = this.plot.clientWidth;
    if (!width || this.matching.length === 0) return;
    const open = (/** @type {string} */ id) => this.details.show(id);
    this.plot.replaceChildren(latencyPlot(this.matching, width, open));
  }
}

/** Why the model answered, how many models were asked, and whether the answer was verified.
 * @param {RecentDecision} decision */
function reason({ reason, candidates, unverified }) {
  const asked =
    candidates === null ? "" : `, ${candidates} ${candidates === 1 ? "model" : "models"} asked`;
  const text = reasonText(reason) + asked;
  return unverified === null || reason === "chat"
    ? text
    : h("span", { title: whyUnverified(unverified) }, `${text}, not verified`);
}

/** @param {RecentDecision[]} decisions at least one @param {number} all before the filters
 * @param {number} limit of decisions that a process keeps */
function summarize(decisions, all, limit) {
  const latencies = decisions.map((decision) => decision.latency_s).sort((a, b) => a - b);
  const costs = decisions
    .map((decision) => decision.actual_cost_usd)
    .filter((cost) => cost !== null);
  const failed = decisions.filter(isFailed).length;
  const at = (/** @type {number} */ share) =>
    duration(latencies[Math.min(latencies.length - 1, Math.floor(share * latencies.length))]);
  const note = decisions.length < all ? ` of ${count(all)}` : all === limit ? " (the latest)" : "";
  return facts(
    [
      ["Decisions", h("span", {}, count(decisions.length), note && h("small", {}, note))],
      ["Median latency", at(0.5)],
      ["95th percentile", at(0.95)],
      [
        "Cost per 1,000 requests",
        costs.length
          ? usdPer1k(costs.reduce((sum, cost) => sum + cost, 0) / costs.length)
          : "unknown",
      ],
      ["Failed", percent(failed / decisions.length)],
    ],
    "facts tiles",
  );
}
