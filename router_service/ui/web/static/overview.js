/** Overview: requests, spend, savings, errors and latency over time, from the traffic history. */

import * as api from "./api.js";
import { byId, facts, h, present, showError, table } from "./dom.js";
import { count, duration, money, percent } from "./format.js";
import { timeChart, timeLabel } from "./timeseries.js";

/** @import { NamedTraffic, Overview, Session, Traffic, UnavailableOverview } from "../types" */
/** @typedef {"model" | "policy" | "key"} Filter */

const EVERY_MS = 5000;
const EMPTY_EVERY_MS = 1000; // so that the first request appears at once
const PERIODS = { hour: "Last hour", day: "Last 24 hours", month: "Last 30 days" };
/** @type {Record<Filter, string>} */
const FILTERS = { model: "Model", policy: "Policy", key: "Key" };

let period = "hour";
/** @type {Partial<Record<Filter, string>>} */
const chosen = {};
/** @type {Overview | undefined} */
let shown;

const filters = h("div", { class: "filters" });
const notice = h("p", { class: "notice", hidden: true });
const empty = h("div", { class: "empty", hidden: true });
const tiles = h("div", { class: "summary" });
const charts = {
  requests: timeChart("Requests"),
  spend: timeChart("Spend"),
  latency: timeChart("Latency"),
  errors: timeChart("Errors"),
};
const figures = /** @type {HTMLDetailsElement} */ (
  h("details", { class: "figures" }, h("summary", {}, "Show the values of the charts as a table"))
);
const lists = h("div", { class: "lists" });
const body = h(
  "div",
  {},
  tiles,
  h("div", { class: "chart-grid" }, ...Object.values(charts).map(({ element }) => element)),
  figures,
  lists,
);

/** @param {Session} session */
export function startOverview(session) {
  const sandbox = session.is_sandbox
    ? " A sandbox answers for all models, so nothing is really spent."
    : "";
  byId("overview-lead").textContent =
    (session.is_admin
      ? "All requests to this gateway."
      : `All requests with the key ${session.key}.`) + sandbox;
  byId("overview-period").append(
    ...Object.entries(PERIODS).map(([value, name]) =>
      h(
        "label",
        {},
        h("input", {
          type: "radio",
          name: "period",
          value,
          checked: value === period,
          onchange: () => change(() => (period = value)),
        }),
        h("span", {}, name),
      ),
    ),
  );
  figures.addEventListener("toggle", showFigures);
  empty.append(
    h("p", {}, "No requests in this period. They appear here within a few seconds."),
    ...(session.is_admin
      ? [h("p", {}, h("a", { href: "#playground" }, "Try the playground"))]
      : []),
  );
  byId("overview-body").append(filters, notice, empty, body);
  body.hidden = true;
  poll();
}

/** @param {() => void} set */
function change(set) {
  set();
  refresh();
}

async function poll() {
  if (!document.hidden && !byId("overview").hidden) await refresh();
  setTimeout(poll, body.hidden ? EMPTY_EVERY_MS : EVERY_MS);
}

async function refresh() {
  const query = { period, ...chosen };
  try {
    const found = await api.overview(query);
    if (query.period !== period) return; // another period was chosen meanwhile
    showError("overview-error");
    update(found);
  } catch (error) {
    showError("overview-error", error);
  }
}

/** @param {Overview | UnavailableOverview} found */
function update(found) {
  const isMissing = "unavailable" in found;
  const isEmpty = !isMissing && found.total.requests === 0;
  notice.hidden = !isMissing;
  empty.hidden = !isEmpty;
  filters.hidden = isMissing;
  body.hidden = isMissing || isEmpty;
  if (isMissing) {
    notice.textContent = `${found.unavailable} Requests are answered as usual, and live traffic is shown.`;
    return;
  }
  shown = found;
  showFilters(found);
  if (isEmpty) return;
  tiles.replaceChildren(totals(found));
  showCharts(found);
  showFigures();
  const all = [
    list("model", found.models, found),
    list("policy", found.policies, found),
    found.keys.length > 0 && list("key", found.keys, found),
  ];
  const focused =
    document.activeElement instanceof HTMLElement
      ? document.activeElement.dataset.filter
      : undefined;
  lists.replaceChildren(...present(all));
  if (focused)
    /** @type {HTMLElement | null} */ (
      lists.querySelector(`[data-filter="${CSS.escape(focused)}"]`)
    )?.focus();
}

/** Chips of the filters that apply; the lists below set them.
 * @param {Overview} found */
function showFilters(found) {
  const entries = /** @type {[Filter, string][]} */ (Object.entries(chosen));
  filters.replaceChildren(
    ...entries.map(([name, value]) =>
      h(
        "button",
        {
          type: "button",
          class: "chip",
          "aria-label": `Remove the filter ${FILTERS[name]}: ${value}`,
          onclick: () => choose(name, value),
        },
        `${FILTERS[name]}: ${label(name, value)}`,
        h("span", { "aria-hidden": "true" }, " ×"),
      ),
    ),
  );
  filters.hidden = entries.length === 0;
  byId("overview").dataset.requests = String(found.total.requests);
}

/** Sets a filter, or removes it if it is set.
 * @param {Filter} name @param {string} value */
function choose(name, value) {
  if (chosen[name] === value) delete chosen[name];
  else chosen[name] = value;
  refresh();
}

/** @param {Filter} name @param {string} value @returns {string} */
function label(name, value) {
  if (name === "key") return value || "without a key";
  if (value !== "none") return value;
  return name === "model" ? "refused before a model was chosen" : "not routed";
}

/** @param {Overview} overview */
function totals({ total, baseline_model }) {
  const saved = total.baseline_usd - total.compared_usd;
  const share = total.baseline_usd > 0 ? saved / total.baseline_usd : 0;
  const note = (/** @type {string} */ value, /** @type {string} */ text) =>
    h("span", {}, value, h("small", {}, text));
  const tokens = total.prompt_tokens + total.completion_tokens;
  return facts(
    [
      [
        "Requests",
        note(
          count(total.requests),
          tokens > 0 ? `${compact(tokens)} tokens` : "no tokens reported",
        ),
      ],
      [
        "Spend",
        note(
          money(total.cost_usd),
          total.unpriced > 0 ? `cost unknown for ${count(total.unpriced)}` : "at list prices",
        ),
      ],
      baseline_model === null
        ? ["Saved", note("not measured", "set router.baseline_model")]
        : [
            saved < 0 ? "Extra cost" : "Saved",
            note(
              money(Math.abs(saved)),
              total.baseline_usd > 0
                ? `${percent(Math.abs(share), 0)} against ${baseline_model} alone`
                : "no routed request yet",
            ),
          ],
      [
        "Errors",
        note(count(total.errors), `${percent(total.errors / total.requests)} of the requests`),
      ],
      [
        "Unfamiliar",
        note(
          count(total.unfamiliar),
          total.unfamiliar > 0
            ? `${percent(total.unfamiliar / total.requests)} are unlike the training data`
            : "requests unlike the training data",
        ),
      ],
      [
        "Median latency",
        note(total.p50_s === null ? "none" : duration(total.p50_s), "half are faster"),
      ],
      [
        "95th percentile",
        note(total.p95_s === null ? "none" : duration(total.p95_s), "95% are faster"),
      ],
    ],
    "facts tiles",
  );
}

/** @param {Overview} overview */
function showCharts({ points, step_s, baseline_model }) {
  const starts = points.map(({ start }) => start);
  const of = (/** @type {(point: Traffic) => number | null} */ value) => points.map(value);
  const base = { starts, step_s };
  charts.requests.show({
    ...base,
    format: compact,
    series: [
      {
        name: "answered",
        kind: "bar",
        style: "good",
        values: of(({ requests, errors }) => requests - errors),
      },
      { name: "errors", kind: "bar", style: "bad", values: of(({ errors }) => errors) },
    ],
  });
  /** @type {import("./timeseries.js").Series[]} */
  const spend = [
    { name: "spent", kind: "bar", style: "good", values: of(({ cost_usd }) => cost_usd) },
  ];
  if (baseline_model !== null)
    spend.push({
      name: `with ${baseline_model} alone`,
      kind: "outline",
      style: "other",
      values: of(
        ({ cost_usd, compared_usd, baseline_usd }) => cost_usd - compared_usd + baseline_usd,
      ),
    });
  charts.spend.show({ ...base, format: money, series: spend });
  charts.latency.show({
    ...base,
    format: duration,
    series: [
      { name: "95th percentile", kind: "line", style: "other", values: of(({ p95_s }) => p95_s) },
      { name: "median", kind: "line", style: "good", values: of(({ p50_s }) => p50_s) },
    ],
  });
  charts.errors.show({
    ...base,
    format: (value) => percent(value, value > 0 && value < 0.1 ? 1 : 0),
    series: [
      {
        name: "share of the requests",
        kind: "bar",
        style: "bad",
        values: of(({ errors, requests }) => (requests > 0 ? errors / requests : null)),
      },
    ],
  });
}

function showFigures() {
  if (!figures.open || !shown) return;
  const { points, step_s, baseline_model } = shown;
  const head = [
    "Time",
    "Requests",
    "Errors",
    "Spend",
    ...(baseline_model === null ? [] : ["Saved"]),
    "Median latency",
    "95th percentile",
  ];
  const rows = points
    .filter(({ requests }) => requests > 0)
    .reverse()
    .map((point) => [
      timeLabel(point.start, step_s, true),
      count(point.requests),
      count(point.errors),
      money(point.cost_usd),
      ...(baseline_model === null ? [] : [money(point.baseline_usd - point.compared_usd)]),
      ...latencies(point),
    ]);
  figures.lastElementChild?.matches(".scroll") && figures.lastElementChild.remove();
  figures.append(table("Values of the charts", head, rows));
}

/** @param {Traffic} traffic */
const latencies = ({ p50_s, p95_s }) =>
  [p50_s, p95_s].map((seconds) => (seconds === null ? "none" : duration(seconds)));

/** Rows by name, each of which is a filter.
 * @param {Filter} name @param {NamedTraffic[]} rows @param {Overview} overview */
function list(name, rows, { baseline_model }) {
  const all = rows.reduce((sum, { requests }) => sum + requests, 0);
  const head = [
    FILTERS[name],
    "Requests",
    "Share",
    "Spend",
    ...(baseline_model === null ? [] : ["Saved"]),
    "Errors",
    "Median",
    "95th pct.",
  ];
  const line = (/** @type {NamedTraffic} */ row) => {
    const values = [
      count(row.requests),
      h(
        "span",
        { class: "share" },
        h(
          "span",
          { class: "bar", "aria-hidden": "true" },
          h("i", { style: { "--share": row.requests / all } }),
        ),
        percent(row.requests / all, 0),
      ),
      money(row.cost_usd),
      ...(baseline_model === null
        ? []
        : [row.baseline_usd > 0 ? percent(1 - row.compared_usd / row.baseline_usd, 0) : "–"]),
      row.errors > 0 ? h("span", { class: "bad" }, percent(row.errors / row.requests)) : "0",
      ...latencies(row),
    ];
    const filter = h(
      "button",
      {
        type: "button",
        class: "link",
        "aria-pressed": String(chosen[name] === row.name),
        "data-filter": `${name} ${row.name}`,
        title: "Show only these requests",
        onclick: () => choose(name, row.name),
      },
      label(name, row.name),
    );
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, filter),
      ...values.map((value, index) => h("td", { "data-name": head[index + 1] }, value)),
    );
  };
  return h(
    "section",
    { class: "card" },
    h("h3", { class: "eyebrow" }, `By ${FILTERS[name].toLowerCase()}`),
    h(
      "table",
      {},
      h("caption", { class: "spoken" }, `Requests by ${name}`),
      h(
        "thead",
        {},
        h("tr", {}, ...head.map((title) => h("th", { scope: "col", "data-name": title }, title))),
      ),
      h("tbody", {}, ...rows.map(line)),
    ),
  );
}

/** @param {number} value @returns {string} */
const compact = (value) =>
  value < 10
    ? String(Number(value.toFixed(1)))
    : value.toLocaleString("en-US", {
        notation: value < 10000 ? "standard" : "compact",
        maximumFractionDigits: value < 10000 ? 0 : 1,
      });
