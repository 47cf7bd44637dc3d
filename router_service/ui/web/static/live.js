/** Live traffic: the latest requests of all replicas, a page at a time. The first page is
 * read again every two seconds. */

import { keepFilters } from "./address.js";
import * as api from "./api.js";
import { causeText, isFailed, nameText, OUTCOMES, outcomeText, reasonText } from "./decisions.js";
import { byId, facts, h, shortened, showError, spoken } from "./dom.js";
import { clock, count, duration, money, percent, usd, usdPer1k } from "./format.js";
import { latencyPlot } from "./latencies.js";
import { policyLabel, policyText } from "./policies.js";
import { whyUnverified } from "./steps.js";

/** @import { DecisionDialog } from "./details.js" */
/** @import { ListedRequest, LiveFigures, LiveTraffic as Listed, Session } from "../types" */

/** @typedef {"outcome" | "model" | "policy" | "reason" | "key" | "team"} Choice */

const EVERY_MS = 2000;
const EMPTY_EVERY_MS = 1000; // so that the first request appears soon
const TYPING_MS = 250;
const NOTHING = "–"; // as in the lists of the overview

/** Rows of a page. Rows on a phone are higher, so there are fewer of them. */
const PAGE = { wide: 25, narrow: 10 };
const NARROW = matchMedia("(max-width: 640px)");

/** @type {Record<Choice, string>} */
const CHOICES = {
  outcome: "Outcome",
  model: "Model",
  policy: "Policy",
  reason: "Reason",
  key: "Key",
  team: "Team",
};
/** What the address may have: the filters, and the place of a page that is not the first one. */
const IN_ADDRESS = [...Object.keys(CHOICES), "search", "before", "after"];

export class LiveTraffic {
  /** The filters and the position, as the page's address has them.
   * @type {Record<string, string>} */
  chosen = {};
  /** What is shown; undefined before the first answer.
   * @type {Listed | undefined} */
  shown;
  /** Table rows by id, kept in place so that they keep the focus.
   * @type {Map<string, HTMLElement>} */
  rows = new Map();
  /** Names that filters offer.
   * @type {Record<Choice, Set<string>>} */
  names = {
    outcome: new Set(Object.keys(OUTCOMES)),
    model: new Set(),
    policy: new Set(),
    reason: new Set(),
    key: new Set(),
    team: new Set(),
  };
  asked = 0;
  isPaused = false;
  /** The timer of the search; a filter is set once the user pauses.
   * @type {number | undefined} */
  typing;

  pause = byId("pause");
  summary = h("div", { class: "summary" });
  search = h("input", {
    type: "search",
    id: "live-search",
    class: "control",
    placeholder: "Part of an id",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => this.typed(),
  });
  filterTitle = h("summary", {}, "Filters");
  filterBox = h("details", { class: "filter-box", open: !NARROW.matches }, this.filterTitle);
  plot = h("div", { class: "plot" });
  chart = h(
    "section",
    { class: "card live-axis" },
    h("h3", { class: "eyebrow" }, "Latency of the requests on this page"),
    this.plot,
  );
  notice = h("p", { class: "notice", hidden: true });
  empty = h("p", { class: "empty", hidden: true });
  tbody = h("tbody");
  range = h("span", { class: "hint", role: "status" });
  newestButton = this.turner("Newest", () => ({}));
  newerButton = this.turner("Newer", ({ newer }) => newer && { after: newer });
  olderButton = this.turner("Older", ({ older }) => older && { before: older });
  pager = h(
    "nav",
    { class: "pager", "aria-label": "Pages", hidden: true },
    this.range,
    this.newestButton,
    this.newerButton,
    this.olderButton,
  );

  /** @param {Session} session @param {DecisionDialog} details */
  constructor(session, details) {
    this.session = session;
    this.details = details;
    this.showsKeys = session.is_admin && session.key !== null;
    const choices = /** @type {Choice[]} */ (Object.keys(CHOICES));
    this.selects = choices
      .filter((name) => this.showsKeys || (name !== "key" && name !== "team"))
      .map((name) => {
        const onchange = () => this.choose(name, select.value);
        const select = h("select", { id: `live-${name}`, class: "control", onchange });
        return { name, select, field: filterField(CHOICES[name], select) };
      });
    this.log = this.table();
  }

  /** Shows the view, and keeps it up to date. */
  start() {
    const { is_admin, key, keeps_content } = this.session;
    const content = keeps_content
      ? "This list has no prompts and answers, but the decision log keeps them."
      : "Prompts and answers are not stored.";
    byId("live-lead").textContent =
      `${is_admin ? "All requests to this gateway" : `All requests with the key ${key}`}, of all replicas, refused ones included. ${content}`;
    this.filterBox.append(
      h(
        "div",
        { class: "filters", role: "group", "aria-label": "Filters" },
        ...this.selects.map(({ field }) => field),
        filterField("Search", this.search),
      ),
    );
    NARROW.addEventListener("change", () => {
      this.filterBox.open = !NARROW.matches;
      this.refresh();
    });
    byId("live-body").append(
      this.notice,
      this.summary,
      this.filterBox,
      this.chart,
      this.empty,
      this.log,
      this.pager,
    );
    this.pause.addEventListener("click", () => this.toggle());
    new ResizeObserver(() => this.draw()).observe(this.plot);
    this.readNames();
    setTimeout(() => this.poll(), EVERY_MS);
  }

  /** @returns {Record<string, string>} the filters and the place, as the page's address has them */
  filters() {
    return this.chosen;
  }

  /** Shows a page of the list with filters, as the page's address has them.
   * @param {Record<string, string>} filters */
  filterBy(filters) {
    const known = Object.entries(filters).filter(([name]) => IN_ADDRESS.includes(name));
    this.chosen = Object.fromEntries(known);
    this.search.value = this.chosen.search ?? "";
    return this.refresh();
  }

  /** Sets a filter, and returns to the first page.
   * @param {string} name @param {string} value `=` and a name; empty for all */
  choose(name, value) {
    const { before, after, [name]: _, ...kept } = this.chosen;
    return this.changed(value ? { ...kept, [name]: value.slice(1) } : kept);
  }

  typed() {
    clearTimeout(this.typing);
    const text = () => this.search.value.trim();
    this.typing = setTimeout(() => this.choose("search", text() && `=${text()}`), TYPING_MS);
  }

  /** @param {Record<string, string>} chosen */
  changed(chosen) {
    this.chosen = chosen;
    keepFilters("live", chosen);
    return this.refresh();
  }

  /** A button that turns to another page.
   * @param {string} name
   * @param {(shown: Listed) => Record<string, string> | "" | null} place of that page */
  turner(name, place) {
    const onclick = async () => {
      const target = this.shown && place(this.shown);
      if (!target) return;
      const { before, after, ...filters } = this.chosen;
      await this.changed({ ...filters, ...target });
      this.filterBox.scrollIntoView({ block: "start" });
    };
    return h("button", { type: "button", onclick }, name);
  }

  table() {
    const names = ["Time", "Model", "Reason", "Policy", "Key", "Latency", "Cost", "Outcome"].filter(
      (name) => name !== "Key" || this.showsKeys,
    );
    return h(
      "table",
      { class: "log", id: "log", hidden: true },
      h("caption", { class: "spoken" }, "Newest requests first"),
      h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))),
      this.tbody,
    );
  }

  toggle() {
    this.isPaused = !this.isPaused;
    this.pause.setAttribute("aria-pressed", String(this.isPaused));
    this.pause.textContent = this.isPaused ? "Resume" : "Pause";
  }

  /** Whether new requests can appear: only on the first page. */
  get isLive() {
    return !("before" in this.chosen || "after" in this.chosen);
  }

  async poll() {
    const isSeen = !document.hidden && !byId("live").hidden;
    if (this.isLive && !this.isPaused && isSeen) await this.refresh();
    setTimeout(() => this.poll(), this.empty.hidden ? EVERY_MS : EMPTY_EVERY_MS);
  }

  async refresh() {
    const asked = ++this.asked;
    const limit = String(NARROW.matches ? PAGE.narrow : PAGE.wide);
    try {
      const found = await api.requests({ ...this.chosen, limit });
      if (asked !== this.asked) return; // another filter or page was chosen meanwhile
      showError("live-error");
      this.show(found);
    } catch (error) {
      if (asked === this.asked) showError("live-error", error);
    }
  }

  /** Reads the names that filters offer; names of listed requests are added later. */
  async readNames() {
    const found = await api.requestNames().catch(() => null); // the list shows the error
    if (found === null || "unavailable" in found) return;
    const { models, policies, reasons, keys, teams } = found;
    this.offer({ model: models, policy: policies, reason: reasons, key: keys, team: teams });
  }

  /** @param {Partial<Record<Choice, string[]>>} names */
  offer(names) {
    for (const [name, values] of Object.entries(names))
      for (const value of values) this.names[/** @type {Choice} */ (name)].add(value);
    for (const { name, select, field } of this.selects) {
      this.fill(select, name);
      // Without any team, the filter would be of no use.
      field.hidden = name === "team" && ![...this.names.team].some(Boolean);
    }
  }

  /** Fills a filter with the names that it offers.
   * @param {HTMLSelectElement} select @param {Choice} name */
  fill(select, name) {
    const chosen = this.chosen[name];
    const names = [...this.names[name]];
    if (chosen !== undefined && !this.names[name].has(chosen)) names.push(chosen);
    const text = (/** @type {string} */ value) =>
      name === "outcome"
        ? (OUTCOMES[/** @type {keyof typeof OUTCOMES} */ (value)] ?? value)
        : name === "reason"
          ? reasonText(value)
          : name === "policy" && value !== "none"
            ? policyText(value)
            : nameText(name, value);
    const options = [
      h("option", { value: "" }, "all"),
      ...names.map((value) => h("option", { value: `=${value}` }, text(value))),
    ];
    // An open list would close if its options were replaced by the same ones.
    if (select.textContent !== options.map(({ textContent }) => textContent).join(""))
      select.replaceChildren(...options);
    select.value = chosen === undefined ? "" : `=${chosen}`;
  }

  /** @param {Listed | {unavailable: string}} found */
  show(found) {
    const isMissing = "unavailable" in found;
    this.notice.hidden = !isMissing;
    this.filterBox.hidden = isMissing;
    if (isMissing) {
      this.notice.textContent = `${found.unavailable} Requests are answered as usual.`;
      for (const part of [this.summary, this.chart, this.empty, this.log, this.pager])
        part.hidden = true;
      return;
    }
    this.shown = found;
    const { requests, newer, older, figures } = found;
    if (newer === null && !this.isLive) {
      // There were too few newer requests, so these are the newest ones.
      const { before, after, ...filters } = this.chosen;
      this.chosen = filters;
      keepFilters("live", filters);
    }
    const isEmpty = requests.length === 0;
    const filters = Object.keys(this.chosen).filter((name) => name in CHOICES || name === "search");
    const isFiltered = filters.length > 0;
    this.log.hidden = isEmpty;
    this.empty.hidden = !isEmpty;
    this.empty.textContent = isFiltered
      ? "No request matches these filters."
      : "No requests yet. They appear here about a second after they end.";
    this.filterTitle.textContent = isFiltered ? `Filters (${filters.length})` : "Filters";
    this.pause.hidden = !this.isLive;
    this.summary.hidden = isEmpty && !isFiltered;
    this.summary.replaceChildren(totals(figures));
    this.offerNamesOf(requests);
    this.turnPages(requests, newer, older);
    this.place(requests);
    this.draw();
  }

  /** @param {ListedRequest[]} requests */
  offerNamesOf(requests) {
    this.offer({
      model: requests.map(({ model }) => model ?? "none"),
      policy: requests.map(({ policy }) => policy ?? "none"),
      reason: requests.flatMap(({ reason }) => reason ?? []),
      key: requests.map(({ key }) => key ?? ""),
      team: requests.map(({ team }) => team ?? ""),
    });
  }

  /** @param {ListedRequest[]} requests @param {string | null} newer @param {string | null} older */
  turnPages(requests, newer, older) {
    const isFirst = newer === null;
    this.pager.hidden = isFirst && older === null;
    this.newestButton.hidden = isFirst;
    /** @type {HTMLButtonElement} */ (this.newerButton).disabled = isFirst;
    /** @type {HTMLButtonElement} */ (this.olderButton).disabled = older === null;
    const [first, last] = [requests.at(0), requests.at(-1)];
    this.range.textContent = isFirst
      ? `The newest ${count(requests.length)} requests`
      : first && last
        ? `${moment(first.time)} to ${moment(last.time)}`
        : "";
    byId("live").dataset.shown = isFirst ? "newest" : (last?.id ?? "");
  }

  /** Puts the rows of these requests in order, and removes all others.
   * @param {ListedRequest[]} requests */
  place(requests) {
    const ids = new Set(requests.map(({ id }) => id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.remove();
      this.rows.delete(id);
    }
    for (const [at, request] of requests.entries()) {
      const row = this.rows.get(request.id) ?? this.row(request);
      const present = this.tbody.children[at];
      if (present !== row) this.tbody.insertBefore(row, present ?? null);
    }
  }

  /** @param {ListedRequest} request */
  row(request) {
    const { id, time, model, policy, key, latency_s, cost_usd } = request;
    const cell = (/** @type {string} */ name, /** @type {string | HTMLElement} */ value) =>
      h("td", { "data-name": name, class: value === NOTHING ? "nothing" : null }, value);
    const open = h(
      "button",
      { type: "button", class: "link", onclick: () => this.details.show(id) },
      moment(time),
      spoken(`, details of ${id}`),
    );
    const row = h(
      "tr",
      { class: isFailed(request) ? "failed" : "", "data-id": id },
      h("th", { scope: "row" }, open),
      cell("Model", shortened(model ?? "no model")),
      cell("Reason", cause(request)),
      cell("Policy", model === null ? NOTHING : policy ? policyLabel(policy) : "not routed"),
      this.showsKeys && cell("Key", key === null ? "none" : shortened(key)),
      cell("Latency", duration(latency_s)),
      cell("Cost", cost_usd !== null ? usd(cost_usd) : isFailed(request) ? NOTHING : "unknown"),
      cell("Outcome", outcomeText(request)),
    );
    this.rows.set(id, row);
    return row;
  }

  draw() {
    // Refused requests take no time worth plotting.
    const plotted = (this.shown?.requests ?? []).filter(({ model }) => model !== null);
    this.chart.hidden = plotted.length === 0;
    const width = this.plot.clientWidth;
    if (!width || plotted.length === 0) return;
    const open = (/** @type {string} */ id) => this.details.show(id);
    this.plot.replaceChildren(latencyPlot(plotted, width, open));
  }
}

/** Why the model answered, how many models were asked, and whether the answer was verified.
 * @param {ListedRequest} request */
function cause(request) {
  const { reason, unverified } = request;
  const text = causeText(request);
  return unverified === null || reason === "chat"
    ? text
    : h("span", { title: whyUnverified(unverified) }, `${text}, not verified`);
}

/** The time, with the day if it is not today.
 * @param {number} unix_s */
function moment(unix_s) {
  const date = new Date(unix_s * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  const day = date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  return isToday ? clock(unix_s) : `${day}, ${clock(unix_s)}`;
}

/** The figures of the last hour, which are those of the overview.
 * @param {LiveFigures} figures */
function totals({ requests, failed, refused, cost_usd, p50_s, p95_s }) {
  const note = (/** @type {string} */ value, /** @type {string} */ text) =>
    h("span", {}, value, h("small", {}, text));
  const share = (/** @type {number} */ part) =>
    requests > 0 ? `${percent(part / requests)} of the requests` : "of no requests";
  return facts(
    [
      ["Requests", note(count(requests), "in the last hour")],
      ["Failed", note(count(failed), share(failed))],
      ["Refused", note(count(refused), share(refused))],
      [
        "Spend",
        note(
          money(cost_usd),
          requests > 0 ? `${usdPer1k(cost_usd / requests)} per 1,000` : "at list prices",
        ),
      ],
      ["Median latency", note(p50_s === null ? "none" : duration(p50_s), "half are faster")],
      ["95th percentile", note(p95_s === null ? "none" : duration(p95_s), "95% are faster")],
    ],
    "facts tiles",
  );
}

/** @param {string} name @param {HTMLElement} control */
const filterField = (name, control) =>
  h("span", { class: "filter" }, h("label", { for: control.id }, name), control);
