/** The form of a key or a team, with the gateway's complaints at the fields that they are about. */

import * as api from "./api.js";
import { h, messageOf, spoken } from "./dom.js";
import { TeamField } from "./team-field.js";

/** @import { CreatedKey, KeyView, Session, TeamView } from "../types" */
/** @import { Child } from "./dom.js" */

/** @typedef {CreatedKey | KeyView | TeamView} Saved what the gateway answers */
/** @typedef {{element: HTMLElement, control: HTMLElement, problem: HTMLElement}} Field */

const DAY_MS = 24 * 3600 * 1000;
const MAX_METADATA = 20;
const PERIODS = { day: "a day", week: "a week", month: "a month", total: "in total" };

export class AccountForm {
  /** The fields by the names of the API.
   * @type {Record<string, Field>} */
  fields = {};
  problem = h("p", { class: "notice error", role: "alert", hidden: true });
  metadata = h("div", { class: "metadata" });
  team = new TeamField("account-team", "none");
  submit = h("button", { type: "submit", class: "primary" });

  /** @param {"keys" | "teams"} list
   * @param {KeyView | TeamView | null} view what is changed; null for a new key or team
   * @param {Session} session
   * @param {{onsaved: (saved: Saved) => void, oncancel: () => void}} on */
  constructor(list, view, session, { onsaved, oncancel }) {
    this.list = list;
    this.view = view;
    this.onsaved = onsaved;
    const key = view !== null && "hint" in view ? view : null;
    const isFirst = session.key === null && list === "keys" && view === null;
    this.models = new Choice("models", "Models", "All models, also future ones", key?.models);
    this.policies = new Choice("policies", "Policies", "All policies", key?.policies, true);
    this.admin = h("input", {
      type: "checkbox",
      id: "account-is_admin",
      checked: key?.is_admin ?? isFirst,
    });
    this.submit.textContent = view ? "Save" : list === "keys" ? "Create key" : "Create team";
    this.team.value = key?.team ?? "";
    this.element = h(
      "form",
      {
        class: "account-form",
        novalidate: true,
        onsubmit: (/** @type {Event} */ e) => this.save(e),
      },
      isFirst &&
        h(
          "p",
          { class: "notice" },
          "This gateway has no keys yet, so everyone on this machine may use it. As soon as it has one, every request needs a key, and this page needs an admin key.",
        ),
      view === null &&
        this.text("name", "Name", "", {
          required: true,
          maxlength: 200,
          hint: "Appears in usage and logs. It cannot be changed, and is never used again.",
        }),
      ...(list === "keys"
        ? [
            this.field("team", "Team", ...this.team.elements),
            this.text("owner", "Owner", view?.owner, { hint: "Such as an e-mail address." }),
            this.text("expires", "Valid through", dayOf(key?.expires), {
              type: "date",
              hint: "Until the end of this day (UTC).",
            }),
            this.adminField(),
          ]
        : [this.text("owner", "Owner", view?.owner, { hint: "Such as an e-mail address." })]),
      group(
        list === "keys" ? "Limits" : "Limits of all keys of the team together",
        this.number("requests_per_minute", "Requests per minute", view?.requests_per_minute),
        this.number("tokens_per_minute", "Tokens per minute", view?.tokens_per_minute),
        this.number("parallel_requests", "Parallel requests", view?.parallel_requests),
        this.budget(view),
      ),
      ...(list === "keys" ? [this.models.element, this.policies.element] : []),
      this.metadataGroup(view?.metadata ?? {}),
      this.problem,
      h(
        "div",
        { class: "actions" },
        this.submit,
        h("button", { type: "button", onclick: oncancel }, "Cancel"),
      ),
    );
    if (list === "keys") this.loadChoices();
    this.fields.models = this.models;
    this.fields.policies = this.policies;
    /** The values before any change; only what differs is sent. */
    this.initial = view && this.values();
  }

  focus() {
    /** @type {HTMLElement | null} */ (this.element.querySelector("input, select"))?.focus();
  }

  /** @param {string} name as in the API @param {string} label @param {...HTMLElement} elements of
   * which the first one is the control, and the others follow it */
  field(name, label, ...elements) {
    const [control] = elements;
    const problem = h("p", { class: "problem", id: `account-${name}-problem`, role: "alert" });
    const element = h(
      "div",
      { class: "field", "data-field": name },
      h("label", { for: control.id }, label),
      ...elements,
      problem,
    );
    this.fields[name] = { element, control, problem };
    return element;
  }

  /** @param {string} name @param {string} label @param {string | null | undefined} value
   * @param {Record<string, unknown>} options attributes, and a hint */
  text(name, label, value, { hint, ...attributes } = {}) {
    const id = `account-${name}`;
    const note = hint ? [h("p", { class: "hint", id: `${id}-hint` }, String(hint))] : [];
    const input = h("input", {
      id,
      class: "control",
      type: "text",
      value: value ?? "",
      autocomplete: "off",
      spellcheck: "false",
      "aria-describedby": hint ? `${id}-hint ${id}-problem` : `${id}-problem`,
      ...attributes,
    });
    return this.field(name, label, input, ...note);
  }

  /** @param {string} name @param {string} label @param {number | null | undefined} value
   * @param {Record<string, unknown>} attributes */
  number(name, label, value, attributes = {}) {
    return this.text(name, label, value == null ? "" : String(value), {
      type: "number",
      min: 1,
      step: 1,
      inputmode: "numeric",
      placeholder: "unlimited",
      ...attributes,
    });
  }

  adminField() {
    const field = this.field("is_admin", "May administer the gateway", this.admin);
    field.classList.add("check");
    field.append(
      h("p", { class: "hint" }, "Opens the whole page and the admin API, with all keys and teams."),
    );
    return field;
  }

  /** @param {KeyView | TeamView | null} view */
  budget(view) {
    const amount = this.number("budget", "Budget in USD", view?.budget?.usd, {
      min: 0,
      step: "any",
      inputmode: "decimal",
    });
    const period = h(
      "select",
      { id: "account-period", class: "control", "aria-label": "Period of the budget" },
      ...Object.entries(PERIODS).map(([value, name]) =>
        h("option", { value, selected: value === (view?.budget?.period ?? "month") }, name),
      ),
    );
    this.period = period;
    this.fields.budget.control.after(period);
    amount.classList.add("with-period");
    return amount;
  }

  /** @param {Record<string, string>} values */
  metadataGroup(values) {
    for (const [name, value] of Object.entries(values)) this.metadataRow(name, value);
    const add = h(
      "button",
      { type: "button", onclick: () => this.metadataRow("", "").querySelector("input")?.focus() },
      "Add metadata",
    );
    const problem = h("p", { class: "problem", role: "alert" });
    const element = group("Metadata", this.metadata, add, problem);
    element.dataset.field = "metadata";
    this.fields.metadata = { element, control: add, problem };
    return element;
  }

  /** @param {string} name @param {string} value */
  metadataRow(name, value) {
    const input = (/** @type {string} */ label, /** @type {string} */ text) =>
      h("input", {
        class: "control",
        type: "text",
        "aria-label": label,
        placeholder: label,
        value: text,
        maxlength: 500,
        autocomplete: "off",
      });
    const remove = () => {
      row.remove();
      this.fields.metadata.control.focus();
    };
    const row = h(
      "div",
      { class: "metadata-row" },
      input("Name", name),
      input("Value", value),
      h(
        "button",
        { type: "button", class: "quiet", onclick: remove },
        "Remove",
        spoken(" this metadata"),
      ),
    );
    this.metadata.append(row);
    return row;
  }

  async loadChoices() {
    try {
      const { arms, unrouted, policies, default_policy } = await api.artifact();
      const models = [...arms, ...unrouted].map(({ model }) => model);
      this.models.offer(Object.fromEntries(models.sort().map((model) => [model, ""])));
      this.policies.offer({ ...policies, default: `${default_policy}, as without a policy` });
    } catch (error) {
      this.say(error);
    }
  }

  /** @param {string} name @returns {string} */
  valueOf(name) {
    const { control } = this.fields[name];
    return control instanceof HTMLInputElement ? control.value.trim() : "";
  }

  /** @returns {Record<string, unknown>} what the form says, as the API reads it */
  values() {
    const number = (/** @type {string} */ name) =>
      this.valueOf(name) === "" ? null : Number(this.valueOf(name));
    const usd = number("budget");
    return {
      ...(this.view === null && { name: this.valueOf("name") }),
      owner: this.valueOf("owner") || null,
      requests_per_minute: number("requests_per_minute"),
      tokens_per_minute: number("tokens_per_minute"),
      parallel_requests: number("parallel_requests"),
      budget: usd === null ? null : { usd, period: this.period?.value },
      metadata: Object.fromEntries(
        [...this.metadata.children]
          .map((row) => [...row.querySelectorAll("input")].map(({ value }) => value.trim()))
          .filter(([name]) => name),
      ),
      ...(this.list === "keys" && {
        team: this.team.value || null,
        is_admin: this.admin.checked,
        expires: endOf(this.valueOf("expires")),
        models: this.models.value,
        policies: this.policies.value,
      }),
    };
  }

  /** @param {Event} event */
  async save(event) {
    event.preventDefault();
    this.clear();
    if (!this.check()) return;
    const values = this.values();
    this.submit.disabled = true;
    try {
      this.onsaved(await this.send(values));
    } catch (error) {
      this.say(error);
      this.submit.disabled = false;
    }
  }

  /** @param {Record<string, unknown>} values @returns {Promise<Saved>} */
  send(values) {
    const { view, initial } = this;
    if (view === null || initial === null)
      return this.list === "keys" ? api.createKey(values) : api.createTeam(values);
    const changes = Object.fromEntries(
      Object.entries(values).filter(
        ([name, value]) => JSON.stringify(value) !== JSON.stringify(initial[name]),
      ),
    );
    return this.list === "keys"
      ? api.changeKey(view.name, changes)
      : api.changeTeam(view.name, changes);
  }

  /** Shows what the browser finds wrong, at its field.
   * @returns {boolean} whether nothing is */
  check() {
    for (const [name, { control }] of Object.entries(this.fields))
      if (control instanceof HTMLInputElement && !control.validity.valid)
        this.complain(name, control.validationMessage);
    for (const choice of [this.models, this.policies])
      if (this.list === "keys" && choice.value?.length === 0)
        this.complain(choice.name, "Choose at least one, or allow all.");
    const names = [...this.metadata.children].map((row) =>
      row.querySelector("input")?.value.trim(),
    );
    if (new Set(names).size < names.length)
      this.complain("metadata", "Each name may be used only once.");
    if (names.length > MAX_METADATA)
      this.complain("metadata", `There may be ${MAX_METADATA} at most.`);
    const first = this.element.querySelector("[aria-invalid]");
    if (first instanceof HTMLElement) show(first);
    return first === null;
  }

  /** @param {unknown} error */
  say(error) {
    const path = error instanceof api.RefusedError ? (error.field ?? "") : "";
    const name = path.split(/[.[]/)[0];
    if (error instanceof api.RefusedError && this.fields[name]?.element.isConnected) {
      this.complain(name, error.problem);
      show(this.fields[name].control);
      return;
    }
    this.problem.textContent = messageOf(error);
    this.problem.hidden = false;
    this.problem.scrollIntoView({ block: "nearest" });
  }

  /** @param {string} name @param {string} text */
  complain(name, text) {
    const { control, problem } = this.fields[name];
    problem.textContent = text;
    control.setAttribute("aria-invalid", "true");
  }

  clear() {
    this.problem.hidden = true;
    for (const { control, problem } of Object.values(this.fields)) {
      problem.textContent = "";
      control.removeAttribute("aria-invalid");
    }
  }
}

/** Names of which all are allowed, or some; null stands for all. */
class Choice {
  problem = h("p", { class: "problem", role: "alert" });
  /** @type {Record<string, string>} notes by the name that is offered */
  offered = {};

  /** @param {string} name as in the API @param {string} title @param {string} all
   * @param {string[] | null | undefined} value @param {boolean} [isOrdered] whether the first name
   * is the default, and other names than the offered ones may be added */
  constructor(name, title, all, value, isOrdered = false) {
    this.name = name;
    this.isOrdered = isOrdered;
    /** The chosen names in their order. */
    this.chosen = [...(value ?? [])];
    this.control = h("input", {
      type: "checkbox",
      id: `account-${name}`,
      checked: value == null,
      onchange: () => this.show(),
    });
    this.options = h("div", { class: "options" });
    this.more = isOrdered ? this.added() : null;
    this.note = h("p", { class: "hint" });
    this.element = group(
      title,
      h("div", { class: "field check" }, this.control, h("label", { for: this.control.id }, all)),
      this.options,
      this.more,
      this.note,
      this.problem,
    );
    this.element.dataset.field = name;
    this.show();
  }

  /** @returns {string[] | null} */
  get value() {
    return this.control.checked ? null : this.chosen;
  }

  /** @param {Record<string, string>} offered */
  offer(offered) {
    this.offered = offered;
    this.show();
  }

  /** An input for further names. */
  added() {
    const input = h("input", {
      class: "control",
      type: "text",
      id: `account-${this.name}-more`,
      placeholder: "theta=0.5, or theta=* for all",
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 200,
    });
    const add = () => {
      const name = input.value.trim();
      if (!name) return;
      if (!this.chosen.includes(name)) this.chosen.push(name);
      input.value = "";
      this.show();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      add();
    });
    return h(
      "div",
      { class: "field add" },
      h("label", { for: input.id }, "Another policy"),
      input,
      h("button", { type: "button", onclick: add }, "Add"),
    );
  }

  show() {
    const isAll = this.control.checked;
    this.options.hidden = isAll;
    if (this.more) this.more.hidden = isAll;
    const names = [...new Set([...Object.keys(this.offered), ...this.chosen])];
    this.options.replaceChildren(
      ...names.map((name) => {
        const onchange = () => {
          this.chosen = box.checked
            ? [...this.chosen, name]
            : this.chosen.filter((each) => each !== name);
          this.explain();
        };
        const box = h("input", {
          type: "checkbox",
          checked: this.chosen.includes(name),
          onchange,
        });
        const note = this.offered[name] && h("small", {}, this.offered[name]);
        return h("label", { title: name }, box, h("bdi", {}, name), note);
      }),
    );
    this.explain();
  }

  explain() {
    const [first] = this.chosen;
    this.note.hidden = !this.isOrdered || this.control.checked || first === undefined;
    this.note.textContent = `Requests that name no policy get ${first}, the first one chosen.`;
  }
}

/** Moves the focus to a control, and scrolls so that its label and its problem can be seen.
 * @param {HTMLElement} control */
function show(control) {
  control.focus({ preventScroll: true });
  control.closest("[data-field]")?.scrollIntoView({ block: "nearest" });
}

/** @param {string} title @param {...Child} children */
const group = (title, ...children) =>
  h("fieldset", { class: "group" }, h("legend", {}, title), ...children);

/** @param {string | null | undefined} iso the end of a day @returns {string} the day */
const dayOf = (iso) => (iso ? new Date(Date.parse(iso) - 1).toISOString().slice(0, 10) : "");

/** @param {string} day @returns {string | null} its end, which is the start of the next day */
const endOf = (day) => (day ? new Date(Date.parse(day) + DAY_MS).toISOString() : null);
