/** Overview: requests, spend, accuracy, errors and latency over time, from the traffic history. */

import { Account } from "./account.js";
import { keepFilters } from "./address.js";
import * as api from "./api.js";
import { byId, facts, h, showError, table } from "./dom.js";
import { count, duration, money, percent } from "./format.js";
import { HeatMap } from "./heatmap.js";
import { policyText } from "./policies.js";
import { TimeChart, timeLabel } from "./timeseries.js";

/** @import { NamedTraffic, Overview, Session, Traffic, TrafficPoint, Unavailable } from "../types" */
/** @import { Series } from "./timeseries.js" */

/** @typedef {"model" | "policy" | "team" | "key"} Filter */

const EVERY_MS = 5000;
const EMPTY_EVERY_MS = 1000; // so that the first request appears at once
const PERIODS = { hour: "Last hour", day: "Last 24 hours", month: "Last 30 days" };
/** @type {Record<Filter, string>} */
const FILTERS = { model: "Model", policy: "Policy", team: "Team", key: "Key" };

/** Scales of accuracies. Differences between good models are small, so most do not begin with 0. */
const SHARE_TICKS = [
  [0.8, 0.9, 1],
  [0.6, 0.8, 1],
  [0.4, 0.6, 0.8, 1],
  [0, 0.5, 1],
];

export class TrafficOverview {
  /** The chosen period; by default, the gateway chooses the shortest one that has requests.
   * @type {string | undefined} */
  period;
  /** The chosen value of each filter that is set.
   * @type {Partial<Record<Filter, string>>} */
  chosen = {};
  asked = 0;
  /** What is shown; undefined before the first answer.
   * @type {Overview | undefined} */
  shown;

  chips = h("div", { class: "filters" });
  notice = h("p", { class: "notice", hidden: true });
  empty = h("div", { class: "empty", hidden: true });
  tiles = h("div", { class: "summary" });
  charts = {
    requests: new TimeChart("Requests"),
    errors: new TimeChart("Errors"),
    spend: new TimeChart("Spend"),
    accuracy: new TimeChart("Expected accuracy"),
    latency: new HeatMap("Latency"),
  };
  sentence = h("p", { class: "sentence" });
  details = h("p", { class: "details" });
  figures = h(
    "details",
    { class: "figures", ontoggle: () => this.showFigures() },
    h("summary", {}, "Show the values of the charts as a table"),
  );
  lists = h("div", { class: "lists" });
  body = h(
    "div",
    { hidden: true },
    h("div", { class: "headline" }, this.sentence, this.details),
    this.tiles,
    h("div", { class: "chart-grid" }, ...Object.values(this.charts).map(({ element }) => element)),
    this.figures,
    this.lists,
  );

  /** @param {Session} session */
  constructor(session) {
    this.session = session;
  }

  /** Shows the view, and keeps it up to date. */
  start() {
    const { is_admin, key, is_sandbox } = this.session;
    const sandbox = is_sandbox
      ? " A sandbox answers for all models, so nothing is really spent."
      : "";
    byId("overview-lead").textContent =
      (is_admin ? "All requests to this gateway." : `All requests with the key ${key}.`) + sandbox;
    byId("overview-period").append(
      ...Object.entries(PERIODS).map(([value, name]) => this.radio(value, name)),
    );
    this.empty.append(
      h("p", {}, "No requests in this period. They appear here within a few seconds."),
      ...(is_admin ? [h("p", {}, h("a", { href: "#playground" }, "Try the playground"))] : []),
    );
    byId("overview-body").append(
      ...(is_admin ? [] : [new Account().element]),
      this.chips,
      this.notice,
      this.empty,
      this.body,
    );
    setTimeout(() => this.poll(), EMPTY_EVERY_MS);
  }

  /** @returns {Record<string, string>} the period and the filters, as the page's address has them */
  filters() {
    return { ...(this.period && { period: this.period }), ...this.chosen };
  }

  /** Shows a period with filters, as the page's address has them.
   * @param {Record<string, string>} filters */
  filterBy({ period, ...filters }) {
    this.period = period in PERIODS ? period : undefined;
    const set = Object.entries(filters).filter(([name]) => name in FILTERS);
    this.chosen = Object.fromEntries(set);
    return this.refresh();
  }

  changed() {
    keepFilters("overview", this.filters());
    return this.refresh();
  }

  /** @param {string} value @param {string} name */
  radio(value, name) {
    const onchange = () => {
      this.period = value;
      this.changed();
    };
    return h(
      "label",
      {},
      h("input", { type: "radio", name: "period", value, onchange }),
      h("span", {}, name),
    );
  }

  async poll() {
    if (!document.hidden && !byId("overview").hidden) await this.refresh();
    setTimeout(() => this.poll(), this.body.hidden ? EMPTY_EVERY_MS : EVERY_MS);
  }

  async refresh() {
    const asked = ++this.asked;
    try {
      const found = await api.overview(this.filters());
      if (asked !== this.asked) return; // another period or filter was chosen meanwhile
      showError("overview-error");
      this.show(found);
    } catch (error) {
      showError("overview-error", error);
    }
  }

  /** Sets a filter, or removes it if it is set.
   * @param {Filter} name @param {string} value */
  choose(name, value) {
    if (this.chosen[name] === value) delete this.chosen[name];
    else this.chosen[name] = value;
    this.changed();
  }

  /** @param {Overview | Unavailable} found */
  show(found) {
    const isMissing = "unavailable" in found;
    const isEmpty = !isMissing && found.total.requests === 0;
    this.notice.hidden = !isMissing;
    this.empty.hidden = !isEmpty;
    this.chips.hidden = isMissing;
    this.body.hidden = isMissing || isEmpty;
    if (isMissing) {
      this.notice.textContent = `${found.unavailable} Requests are answered as usual, and live traffic is shown.`;
      return;
    }
    this.shown = found;
    const radio = byId("overview-period").querySelector(`[value="${found.period}"]`);
    if (radio instanceof HTMLInputElement) radio.checked = true;
    this.showFilters(found);
    if (isEmpty) return;
    this.sentence.textContent = found.summary.sentence;
    this.details.textContent = found.summary.details.join(" ");
    this.tiles.replaceChildren(totals(found));
    this.showCharts(found);
    this.showFigures();
    this.showLists(found);
  }

  /** Chips of the filters that apply; the lists below set them.
   * @param {Overview} found */
  showFilters(found) {
    const entries = /** @type {[Filter, string][]} */ (Object.entries(this.chosen));
    this.chips.replaceChildren(
      ...entries.map(([name, value]) =>
        h(
          "button",
          {
            type: "button",
            class: "chip",
            "aria-label": `Remove the filter ${FILTERS[name]}: ${value}`,
            onclick: () => this.choose(name, value),
          },
          `${FILTERS[name]}: ${label(name, value)}`,
          h("span", { "aria-hidden": "true" }, " ×"),
        ),
      ),
    );
    this.chips.hidden = entries.length === 0;
    byId("overview").dataset.requests = String(found.total.requests);
  }

  /** @param {Overview} overview */
  showCharts({ points, step_s, baseline_model, latencies }) {
    const starts = points.map(({ start }) => start);
    const of = (/** @type {(point: Traffic) => number | null} */ value) => points.map(value);
    const base = { starts, step_s };
    this.charts.requests.show({
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
    /** @type {Series[]} */
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
    this.charts.spend.show({ ...base, format: money, series: spend });
    this.showAccuracy(points, base, baseline_model);
    this.charts.latency.showMap(
      {
        ...base,
        format: duration,
        series: [
          { name: "median", kind: "line", style: "middle", values: of(({ p50_s }) => p50_s) },
          {
            name: "95th percentile",
            kind: "line",
            style: "other",
            values: of(({ p95_s }) => p95_s),
          },
        ],
      },
      latencies,
    );
    this.charts.errors.show({
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

  /** Shows how probably answers are correct, and how probably the best model's would be.
   * @param {TrafficPoint[]} points @param {{ starts: number[], step_s: number }} base
   * @param {string | null} baseline_model */
  showAccuracy(points, base, baseline_model) {
    const share = (/** @type {(point: Traffic) => number} */ correct) =>
      points.map((point) => (point.estimated > 0 ? correct(point) / point.estimated : null));
    const chosen = share((point) => point.expected_correct);
    const best = share((point) => point.baseline_expected_correct);
    const known = [...chosen, ...best].filter((value) => value !== null);
    this.charts.accuracy.show({
      ...base,
      ticks: SHARE_TICKS.find(([lowest]) => lowest < Math.min(...known)) ?? SHARE_TICKS[0],
      format: (value) => percent(value, 0),
      series: [
        { name: "answers", kind: "line", style: "good", values: chosen },
        ...(baseline_model === null
          ? []
          : [
              /** @type {Series} */ ({
                name: `${baseline_model} alone`,
                kind: "line",
                style: "other",
                values: best,
              }),
            ]),
      ],
    });
  }

  /** Writes the values of the charts as a table, if it is open. */
  showFigures() {
    if (!this.figures.open || !this.shown) return;
    const { points, step_s, baseline_model } = this.shown;
    const head = [
      "Time",
      "Requests",
      "Errors",
      "Spend",
      ...(baseline_model === null ? [] : ["Saved", "Accuracy"]),
      "Median latency",
      "95th percentile",
      "99th percentile",
    ];
    const rows = points
      .filter(({ requests }) => requests > 0)
      .reverse()
      .map((point) => [
        timeLabel(point.start, step_s, true),
        count(point.requests),
        count(point.errors),
        money(point.cost_usd),
        ...(baseline_model === null
          ? []
          : [money(point.baseline_usd - point.compared_usd), accuracy(point)]),
        ...latencies(point),
        seconds(point.p99_s),
      ]);
    this.figures.querySelector(".scroll")?.remove();
    this.figures.append(table("Values of the charts", head, rows));
  }

  /** @param {Overview} found */
  showLists(found) {
    const { activeElement } = document;
    const focused = activeElement instanceof HTMLElement && activeElement.dataset.filter;
    this.lists.replaceChildren(
      this.list("model", found.models, found),
      this.list("policy", found.policies, found),
      ...(found.teams.length > 0 ? [this.list("team", found.teams, found)] : []),
      ...(found.keys.length > 0 ? [this.list("key", found.keys, found)] : []),
    );
    if (focused)
      /** @type {HTMLElement | null} */ (
        this.lists.querySelector(`[data-filter="${CSS.escape(focused)}"]`)
      )?.focus();
  }

  /** Rows by name, each of which is a filter.
   * @param {Filter} name @param {NamedTraffic[]} rows @param {Overview} overview */
  list(name, rows, { baseline_model, total }) {
    // The lists of keys and teams have only the largest, and not every key has a team.
    const listed = rows.reduce((sum, { requests }) => sum + requests, 0);
    const all = Math.max(listed, total.requests);
    const head = [
      FILTERS[name],
      "Requests",
      "Share",
      "Spend",
      ...(baseline_model === null ? [] : ["Saved", "Accuracy"]),
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
          : [
              row.baseline_usd > 0 ? percent(1 - row.compared_usd / row.baseline_usd, 0) : "–",
              accuracy(row),
            ]),
        row.errors > 0 ? h("span", { class: "bad" }, percent(row.errors / row.requests)) : "0",
        ...latencies(row),
      ];
      const filter = h(
        "button",
        {
          type: "button",
          class: "link",
          "aria-pressed": String(this.chosen[name] === row.name),
          "data-filter": `${name} ${row.name}`,
          title: "Show only these requests",
          onclick: () => this.choose(name, row.name),
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
}

/** @param {Filter} name @param {string} value @returns {string} */
function label(name, value) {
  if (name === "team") return value || "without a team";
  if (name === "key") return value || "without a key";
  if (name === "policy" && value !== "none") return policyText(value);
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
        "Accuracy",
        note(
          accuracy(total),
          total.relative_accuracy === null || baseline_model === null
            ? "no routed request yet"
            : `expected, relative to ${baseline_model}`,
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

/** @param {Traffic} traffic */
const latencies = ({ p50_s, p95_s }) => [p50_s, p95_s].map(seconds);

/** @param {number | null} value */
const seconds = (value) => (value === null ? "none" : duration(value));

/** The expected accuracy, relative to that of the model that is compared with.
 * @param {Traffic} traffic */
const accuracy = ({ relative_accuracy }) =>
  relative_accuracy === null ? "–" : percent(relative_accuracy, 0);

/** @param {number} value @returns {string} */
const compact = (value) =>
  value < 10
    ? String(Number(value.toFixed(1)))
    : value.toLocaleString("en-US", {
        notation: value < 10000 ? "standard" : "compact",
        maximumFractionDigits: value < 10000 ? 0 : 1,
      });
