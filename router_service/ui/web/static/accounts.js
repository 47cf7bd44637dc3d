/** Keys and teams: one page of a list at a time, and the dialogs that change them. */

import { AccountDialog } from "./account-dialog.js";
import { addressOf, keepFilters } from "./address.js";
import * as api from "./api.js";
import { budgetBar } from "./budgets.js";
import { byId, h, shortened, showError, spoken } from "./dom.js";
import { count, money } from "./format.js";
import { limitsText, statusBadge } from "./limits.js";
import { TeamField } from "./team-field.js";

/** @import { KeyView, Session, TeamView } from "../types" */
/** @import { Child } from "./dom.js" */

/** @typedef {"keys" | "teams"} List */
/** @typedef {"search" | "team" | "status"} Filter */

const EVERY_MS = 10_000;
const PAGE = 50; // rows, also with 100,000 keys
const TYPING_MS = 250;

/** @type {Record<List, {title: string, one: string, columns: string[], empty: string}>} */
const LISTS = {
  keys: {
    title: "Keys",
    one: "key",
    columns: ["Name", "Team", "Status", "Secret", "Limits", "This month", "Budget"],
    empty: "No keys in the database yet. Keys of the configuration file are not listed here.",
  },
  teams: {
    title: "Teams",
    one: "team",
    columns: ["Name", "Keys", "Limits", "This month", "Budget"],
    empty: "No teams yet. The keys of a team share its limits and its budget.",
  },
};

export class Accounts {
  /** @type {List} */
  list = "keys";
  /** The filters that are set.
   * @type {Partial<Record<Filter, string>>} */
  chosen = {};
  /** Where the shown page begins, after those before it; a page begins after a name.
   * @type {string[]} */
  starts = [""];
  /** @type {string | null} where the next page begins */
  next = null;
  asked = 0;

  create = byId("accounts-create");
  search = h("input", {
    type: "search",
    id: "accounts-search",
    class: "control",
    placeholder: "Part of a name or owner",
    autocomplete: "off",
    spellcheck: "false",
    oninput: () => this.typed(),
  });
  team = new TeamField("accounts-team", "all", () => this.choose("team", this.team.value));
  status = h(
    "select",
    {
      id: "accounts-status",
      class: "control",
      onchange: () => this.choose("status", this.status.value),
    },
    h("option", { value: "" }, "all"),
    ...["active", "expired", "revoked"].map((value) => h("option", { value }, value)),
  );
  keyFilters = [filterField("Team", ...this.team.elements), filterField("Status", this.status)];
  message = h("p", { class: "notice", role: "status", hidden: true });
  empty = h("p", { class: "empty", hidden: true });
  table = h("table", { class: "accounts", hidden: true });
  range = h("span", { class: "hint", role: "status" });
  previousButton = h("button", { type: "button", onclick: () => this.turn(-1) }, "Previous");
  nextButton = h("button", { type: "button", onclick: () => this.turn(1) }, "Next");
  pager = h(
    "nav",
    { class: "pager", "aria-label": "Pages", hidden: true },
    this.range,
    this.previousButton,
    this.nextButton,
  );

  /** @param {Session} session */
  constructor(session) {
    this.dialog = new AccountDialog(session, (message, isNew) => this.changed(message, isNew));
  }

  /** Shows the view, and keeps it up to date. */
  start() {
    byId("accounts-list").append(
      ...Object.entries(LISTS).map(([value, { title }]) =>
        this.radio(/** @type {List} */ (value), title),
      ),
    );
    this.create.addEventListener("click", () => this.dialog.create(this.list));
    byId("keys-body").append(
      this.message,
      h(
        "div",
        { class: "filters", role: "group", "aria-label": "Filters" },
        filterField("Search", this.search),
        ...this.keyFilters,
      ),
      this.empty,
      this.table,
      this.pager,
    );
    setTimeout(() => this.poll(), EVERY_MS);
  }

  /** @param {List} value @param {string} title */
  radio(value, title) {
    const onchange = () => {
      this.filterBy({ list: value });
      keepFilters("keys", this.filters());
    };
    return h(
      "label",
      {},
      h("input", { type: "radio", name: "accounts-list", value, onchange }),
      h("span", {}, title),
    );
  }

  /** Shows the first page of a list with filters, as the page's address has them.
   * @param {Record<string, string>} filters */
  filterBy({ list = "keys", search, team, status }) {
    this.list = list === "teams" ? "teams" : "keys";
    this.chosen = {};
    if (search) this.chosen.search = search;
    if (team && this.list === "keys") this.chosen.team = team;
    if (status && this.list === "keys") this.chosen.status = status;
    this.search.value = this.chosen.search ?? "";
    this.team.value = this.chosen.team ?? "";
    this.status.value = this.chosen.status ?? "";
    for (const field of this.keyFilters) field.hidden = this.list !== "keys";
    const radio = byId("accounts-list").querySelector(`[value="${this.list}"]`);
    if (radio instanceof HTMLInputElement) radio.checked = true;
    this.create.textContent = `New ${LISTS[this.list].one}`;
    this.message.hidden = true;
    this.restart();
  }

  /** @returns {Record<string, string>} the filters, as the page's address has them */
  filters() {
    return { ...(this.list === "teams" && { list: "teams" }), ...this.chosen };
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.choose("search", this.search.value.trim()), TYPING_MS);
  }

  /** @param {Filter} name @param {string} value empty for all */
  choose(name, value) {
    if (value) this.chosen[name] = value;
    else delete this.chosen[name];
    keepFilters("keys", this.filters());
    this.restart();
  }

  restart() {
    this.starts = [""];
    return this.refresh();
  }

  /** @param {1 | -1} step to the next page, or to the one before */
  async turn(step) {
    if (step < 0) this.starts.pop();
    else this.starts.push(this.next ?? "");
    await this.refresh();
    this.table.scrollIntoView({ block: "nearest" });
  }

  /** Says what was changed, and shows the change. New keys may be on another page.
   * @param {string} message @param {boolean} isNew */
  changed(message, isNew) {
    this.message.textContent = message;
    this.message.hidden = false;
    return isNew ? this.restart() : this.refresh();
  }

  async poll() {
    const isSeen = !document.hidden && !byId("keys").hidden && !this.dialog.element.open;
    if (isSeen) await this.refresh();
    setTimeout(() => this.poll(), EVERY_MS);
  }

  async refresh() {
    const asked = ++this.asked;
    const after = this.starts.at(-1);
    /** @type {Record<string, string>} */
    const query = { limit: String(PAGE), ...this.chosen, ...(after && { after }) };
    try {
      const found = await (this.list === "keys" ? api.keys(query) : api.teams(query));
      if (asked !== this.asked) return; // another list or page was chosen meanwhile
      showError("keys-error");
      this.show("keys" in found ? found.keys : found.teams, found);
    } catch (error) {
      if (asked === this.asked) showError("keys-error", error);
    }
  }

  /** @param {(KeyView | TeamView)[]} views @param {{total: number, next: string | null}} page */
  show(views, { total, next }) {
    const { title, columns, empty } = LISTS[this.list];
    const isEmpty = views.length === 0;
    const isFiltered = Object.keys(this.chosen).length > 0;
    this.next = next;
    this.table.hidden = this.pager.hidden = isEmpty;
    this.empty.hidden = !isEmpty;
    this.empty.textContent = isFiltered ? `No ${LISTS[this.list].one} matches.` : empty;
    const first = (this.starts.length - 1) * PAGE + 1;
    this.range.textContent =
      total > views.length
        ? `${count(first)} to ${count(first + views.length - 1)} of ${count(total)}`
        : `${count(total)} ${total === 1 ? LISTS[this.list].one : this.list}`;
    this.previousButton.hidden = this.nextButton.hidden = total <= views.length;
    /** @type {HTMLButtonElement} */ (this.previousButton).disabled = this.starts.length === 1;
    /** @type {HTMLButtonElement} */ (this.nextButton).disabled = next === null;
    byId("keys").dataset.shown = `${this.list} ${first} of ${total}`;

    const { activeElement } = document;
    const focused = activeElement instanceof HTMLElement && activeElement.dataset.account;
    this.table.replaceChildren(
      h("caption", { class: "spoken" }, title),
      h("thead", {}, h("tr", {}, ...columns.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, ...views.map((view) => this.row(view, columns))),
    );
    this.table.dataset.list = this.list;
    if (focused)
      /** @type {HTMLElement | null} */ (
        this.table.querySelector(`[data-account="${CSS.escape(focused)}"]`)
      )?.focus();
  }

  /** @param {KeyView | TeamView} view @param {string[]} columns */
  row(view, columns) {
    const isKey = "hint" in view;
    const open = h(
      "button",
      {
        type: "button",
        class: "link name",
        title: view.name,
        "data-account": view.name,
        onclick: () => (isKey ? this.dialog.showKey(view) : this.dialog.showTeam(view)),
      },
      h("bdi", {}, view.name),
    );
    /** @type {Child[]} */
    const own = isKey
      ? [
          view.team !== null && keysOf(view.team, shortened(view.team)),
          statusBadge(view),
          h("code", {}, `…${view.hint}`),
        ]
      : [
          view.keys === 0
            ? "0"
            : keysOf(view.name, count(view.keys), spoken(` keys of ${view.name}`)),
        ];
    const cells = [
      ...own,
      limitsText(view),
      money(view.spent_month_usd),
      view.budget_state && budgetBar(view.budget_state, `Budget of ${view.name}`),
    ];
    return h(
      "tr",
      { class: isKey ? view.status : "" },
      h("th", { scope: "row" }, open, view.owner && h("small", {}, shortened(view.owner))),
      ...cells.map((cell, index) => h("td", { "data-name": columns[index + 1] }, cell)),
    );
  }
}

/** A link to a team's keys.
 * @param {string} team @param {...Child} children */
const keysOf = (team, ...children) => h("a", { href: addressOf("keys", { team }) }, ...children);

/** @param {string} name @param {...HTMLElement} elements of which the first one is the control */
const filterField = (name, ...elements) =>
  h("span", { class: "filter" }, h("label", { for: elements[0].id }, name), ...elements);
