/** Live traffic: the latest decisions of the gateway process, read every two seconds. */

import * as api from "./api.js";
import { byId, facts, h, present, s, showError, spoken, table } from "./dom.js";
import { clock, count, duration, percent, usd, usdPer1k } from "./format.js";
import { steps, whyUnverified } from "./steps.js";
import { brief } from "./timeseries.js";

/** @import { ExplainedDecision, RecentDecision, Session } from "../types" */
/** @typedef {"model" | "policy" | "status" | "reason" | "key"} Filter */

const EVERY_MS = 2000;

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

/** @type {Record<Filter, {name: string, of: (row: RecentDecision) => string}>} */
const FILTERS = {
  model: { name: "Model", of: (row) => row.model },
  policy: { name: "Policy", of: ({ policy }) => policy ?? "not routed" },
  reason: { name: "Reason", of: ({ reason }) => REASONS[reason] ?? reason },
  status: { name: "Status", of: (row) => outcome(row) },
  key: { name: "Key", of: ({ key }) => key ?? "without a key" },
};

/** @type {Map<string, RecentDecision>} decisions of all processes that answered so far; each lists only its own */
const known = new Map();
/** @type {Map<string, HTMLElement>} table rows by id, kept in place so that they keep the focus */
const shown = new Map();
/** @type {Partial<Record<Filter, string>>} */
const chosen = {};
const rows = h("tbody");
const summary = h("div", { class: "summary" });
const filters = h("div", { class: "filters", role: "group", "aria-label": "Filters" });
const plot = h("div", { class: "plot" });
const axis = h(
  "section",
  { class: "card live-axis" },
  h("h3", { class: "eyebrow" }, "Latency over time"),
  plot,
);
const empty = h("p", { class: "empty" });
let isPaused = false;
let showsKeys = false;
let limit = 0;

/** @param {Session} session */
export function startLive(session) {
  showsKeys = session.is_admin && session.key !== null;
  const place =
    session.workers > 1
      ? `the worker process that answers this page, one of ${session.workers}`
      : "this gateway";
  byId("live-lead").textContent =
    `The latest decisions of ${place}${session.is_admin ? "" : `, for the key ${session.key}`}. Prompts and answers are not shown.`;
  byId("live-body").append(summary, filters, axis, empty, log());
  byId("pause").addEventListener("click", toggle);
  byId("details").addEventListener("click", (event) => {
    if (event.target === event.currentTarget) closeDetails(); // the backdrop
  });
  new ResizeObserver(draw).observe(plot);
  update([]);
  poll();
}

function log() {
  const names = [
    "Time",
    "Model",
    "Reason",
    "Policy",
    ...(showsKeys ? ["Key"] : []),
    "Latency",
    "Cost",
    "Status",
  ];
  return h(
    "table",
    { class: "log", id: "log", hidden: true },
    h("caption", { class: "spoken" }, "Newest decisions first"),
    h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))),
    rows,
  );
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
    const recent = await api.recent();
    showError("live-error");
    limit = recent.limit;
    update(recent.decisions);
  } catch (error) {
    showError("live-error", error);
  }
}

/** @param {RecentDecision[]} received */
function update(received) {
  for (const decision of received) known.set(decision.id, decision);
  const newest = [...known.values()].sort((a, b) => b.created - a.created);
  for (const { id } of newest.splice(limit || newest.length)) forget(id);
  const matching = newest.filter((row) =>
    filterNames().every(
      (name) => chosen[name] === undefined || FILTERS[name].of(row) === chosen[name],
    ),
  );
  const isEmpty = matching.length === 0;
  byId("log").hidden = axis.hidden = summary.hidden = isEmpty;
  empty.hidden = !isEmpty;
  empty.textContent =
    newest.length > 0
      ? "No decision matches these filters."
      : "No decisions yet. They appear here as soon as this gateway answers a request.";
  showFilters(newest);
  if (!isEmpty) summary.replaceChildren(summarize(matching, newest.length));
  let place = 0;
  const wanted = new Set(matching.map(({ id }) => id));
  for (const decision of newest) {
    const element = shown.get(decision.id) ?? row(decision);
    element.hidden = !wanted.has(decision.id);
    if (rows.children[place] !== element) rows.insertBefore(element, rows.children[place] ?? null);
    place += 1;
  }
  current = matching;
  draw();
}

const filterNames = () =>
  /** @type {Filter[]} */ (Object.keys(FILTERS)).filter((name) => name !== "key" || showsKeys);

/** A choice for each filter, with the number of decisions.
 * @param {RecentDecision[]} all */
function showFilters(all) {
  filters.hidden = all.length === 0;
  for (const name of filterNames()) {
    /** @type {Map<string, number>} */
    const counts = new Map();
    for (const decision of all)
      counts.set(FILTERS[name].of(decision), (counts.get(FILTERS[name].of(decision)) ?? 0) + 1);
    const wanted = chosen[name];
    if (wanted !== undefined && !counts.has(wanted)) counts.set(wanted, 0);
    const id = `live-${name}`;
    const existing = /** @type {HTMLSelectElement | null} */ (document.getElementById(id));
    const select =
      existing ?? /** @type {HTMLSelectElement} */ (h("select", { id, onchange: choose }));
    const options = [
      h("option", { value: "" }, "all"),
      ...[...counts]
        .sort((a, b) => b[1] - a[1])
        .map(([value, number]) =>
          h("option", { value, selected: value === wanted }, `${value} (${number})`),
        ),
    ];
    // An open list would close if its options were replaced by the same ones.
    if (select.textContent !== options.map(({ textContent }) => textContent).join(""))
      select.replaceChildren(...options);
    if (!existing)
      filters.append(
        h("span", { class: "filter" }, h("label", { for: id }, FILTERS[name].name), select),
      );
  }
}

/** @param {Event} event */
function choose(event) {
  const select = /** @type {HTMLSelectElement} */ (event.target);
  const name = /** @type {Filter} */ (select.id.replace("live-", ""));
  if (select.value) chosen[name] = select.value;
  else delete chosen[name];
  update([]);
}

/** @param {string} id */
function forget(id) {
  shown.get(id)?.remove();
  shown.delete(id);
  known.delete(id);
}

/** @param {RecentDecision} decision */
function row(decision) {
  const cell = (/** @type {string} */ name, /** @type {string | HTMLElement} */ value) =>
    h("td", { "data-name": name }, value);
  const open = h(
    "button",
    { type: "button", class: "link", onclick: () => showDetails(decision.id) },
    clock(decision.created),
    spoken(`, details of ${decision.id}`),
  );
  const element = h(
    "tr",
    { class: isFailed(decision) ? "failed" : "", "data-id": decision.id },
    h("th", { scope: "row" }, open),
    cell("Model", decision.model),
    cell("Reason", reason(decision)),
    cell("Policy", decision.policy ?? "not routed"),
    ...(showsKeys ? [cell("Key", decision.key ?? "none")] : []),
    cell("Latency", duration(decision.latency_s)),
    cell("Cost", decision.actual_cost_usd === null ? "unknown" : usd(decision.actual_cost_usd)),
    cell("Status", outcome(decision)),
  );
  shown.set(decision.id, element);
  return element;
}

/** @param {RecentDecision} decision */
const isFailed = ({ status, ending }) =>
  (status >= 400 && ending !== "client_left") || ending === "failed" || ending === "broken";

/** @param {RecentDecision} decision @returns {string} how the request ended */
function outcome(decision) {
  const { status, ending } = decision;
  if (ending === "client_left") return "client left";
  if (ending === "broken") return "broke off";
  if (!isFailed(decision)) return "answered";
  return status < 500 && status !== 429 ? `refused (${status})` : `failed (${status})`;
}

/** @param {RecentDecision} decision */
function reason({ reason, candidates, unverified }) {
  const text =
    (REASONS[reason] ?? reason) +
    (candidates === null ? "" : `, ${candidates} ${candidates === 1 ? "model" : "models"} asked`);
  return unverified === null || reason === "chat"
    ? text
    : h("span", { title: whyUnverified(unverified) }, `${text}, not verified`);
}

/** @param {RecentDecision[]} decisions @param {number} all */
function summarize(decisions, all) {
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

/** @type {RecentDecision[]} the decisions in the plot */
let current = [];

/** Draws a dot for each decision: to the right by time, and upwards by latency on a log scale. */
function draw() {
  const width = plot.clientWidth;
  if (!width || current.length === 0) return;
  const [left, right, top, bottom] = [52, width - 12, 10, 120];
  const times = current.map(({ created }) => created);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const logs = current.map(({ latency_s }) => Math.log10(Math.max(latency_s, 0.0001)));
  const [low, high] = [
    Math.floor(Math.min(...logs) * 2) / 2,
    Math.ceil(Math.max(...logs) * 2 + 0.01) / 2,
  ];
  const x = (/** @type {number} */ at) =>
    to > from ? left + 6 + ((at - from) / (to - from)) * (right - left - 12) : (left + right) / 2;
  const y = (/** @type {number} */ log) => bottom - ((log - low) / (high - low)) * (bottom - top);
  const decades = Array.from(
    { length: Math.floor(high) - Math.ceil(low) + 1 },
    (_, index) => Math.ceil(low) + index,
  );
  const gaps = Math.min(width < 500 ? 2 : 4, Math.floor(to - from)); // labels show seconds, so they are at least one second apart
  const ticks = Array.from(
    { length: gaps + 1 },
    (_, index) => from + ((to - from) * index) / (gaps || 1),
  );
  const failed = current.filter(isFailed).length;
  plot.replaceChildren(
    s(
      "svg",
      {
        class: "timeseries",
        viewBox: `0 0 ${width} 146`,
        role: "img",
        "aria-label": `Latency of ${current.length} decisions between ${clock(from)} and ${clock(to)}, of which ${failed} failed. The table below has the same decisions.`,
      },
      ...decades.map((log) =>
        s(
          "g",
          {},
          s("line", { class: "grid", x1: left, x2: right, y1: y(log), y2: y(log) }),
          s(
            "text",
            { x: left - 8, y: y(log) + 4, "text-anchor": "end" },
            brief(duration(10 ** log)),
          ),
        ),
      ),
      s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      ...ticks.map((tick, index) =>
        s(
          "text",
          {
            x: x(tick),
            y: bottom + 18,
            "text-anchor":
              to === from ? "middle" : index === 0 ? "start" : index === gaps ? "end" : "middle",
          },
          clock(tick),
        ),
      ),
      ...[...current]
        .sort((a, b) => Number(isFailed(a)) - Number(isFailed(b)))
        .map((decision) =>
          s(
            "circle",
            {
              class: isFailed(decision) ? "decision bad" : "decision",
              cx: x(decision.created),
              cy: y(Math.log10(Math.max(decision.latency_s, 0.0001))),
              r: 4,
              onclick: () => showDetails(decision.id),
            },
            s(
              "title",
              {},
              `${clock(decision.created)}, ${decision.model}: ${duration(decision.latency_s)}, ${outcome(decision)}`,
            ),
          ),
        ),
    ),
  );
}

const dialog = () => /** @type {HTMLDialogElement} */ (byId("details"));
const closeDetails = () => dialog().close();

/** @param {string} id */
async function showDetails(id) {
  const head = h(
    "header",
    {},
    h("h2", { id: "details-title" }, "Decision ", h("code", {}, id)),
    h("button", { type: "button", class: "quiet", onclick: closeDetails }, "Close"),
  );
  const body = h("div", {}, h("p", { class: "hint" }, "Loading …"));
  dialog().replaceChildren(head, body);
  dialog().showModal();
  try {
    body.replaceChildren(...described(await api.decision(id)));
  } catch (error) {
    body.replaceChildren(
      h(
        "p",
        { class: "notice error", role: "alert" },
        error instanceof Error ? error.message : String(error),
      ),
    );
  }
}

/** @param {ExplainedDecision} details */
function described(details) {
  const { probabilities, cost_usd } = details;
  const label = (/** @type {string} */ arm) => details.labels[arm] ?? arm;
  const arms = Object.entries(probabilities ?? {}).sort((a, b) => b[1] - a[1]);
  return present([
    h("p", { class: "explanation" }, details.explanation),
    facts(
      [
        ["Answered by", details.model],
        details.arm !== details.model && ["Arm", details.arm],
        ["Reason", REASONS[details.reason] ?? details.reason],
        [
          "Policy",
          details.policy_name ? `${details.policy_name} (${details.policy})` : details.policy,
        ],
        [
          "Probability demanded",
          details.threshold === null ? null : `${percent(details.threshold)} or more`,
        ],
        ["Status", `${details.status}, ${details.ending.replaceAll("_", " ")}`],
        ["Time", new Date(details.created * 1000).toLocaleString("en-GB")],
        ["Key", details.key],
        ["Attempts", details.attempts],
        ["Deployment", details.deployment],
        ["Latency", duration(details.latency_s)],
        ["First byte", details.first_byte_s === null ? null : duration(details.first_byte_s)],
        ["Tokens in", details.prompt_tokens],
        ["Tokens out", details.completion_tokens],
        ["Cost", details.actual_cost_usd === null ? null : usd(details.actual_cost_usd)],
        ["Tokens read by the router", details.packed_tokens],
        [
          "Familiarity",
          details.familiarity === null
            ? null
            : percent(details.familiarity, details.familiarity < 0.1 ? 1 : 0),
        ],
      ].filter((fact) => Array.isArray(fact)),
    ),
    ...steps(details.candidates ?? [], details.reason === "chat" ? null : details.unverified),
    arms.length > 0 &&
      table(
        "Prediction for each arm",
        ["Arm", "Probability correct", "USD per 1,000"],
        arms.map(([arm, probability]) => [
          arm === details.arm
            ? h("b", {}, label(arm), " (chosen)")
            : details.qualifying_arms.includes(arm)
              ? h("span", {}, label(arm), " (enough)")
              : label(arm),
          percent(probability),
          cost_usd ? usdPer1k(cost_usd[arm]) : "",
        ]),
      ),
  ]);
}
