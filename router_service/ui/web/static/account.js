/** What a client's key may spend: its own budget, and its team's. */

import * as api from "./api.js";
import { budgetBar } from "./budgets.js";
import { errorNotice, h, present } from "./dom.js";
import { limitsText } from "./limits.js";

/** @import { KeyView } from "../types" */

const EVERY_MS = 10_000;

export class Account {
  element = h("section", { class: "card own-account", "aria-label": "Budget", hidden: true });

  constructor() {
    this.poll();
  }

  async poll() {
    if (!document.hidden) await this.refresh();
    setTimeout(() => this.poll(), EVERY_MS);
  }

  async refresh() {
    try {
      this.show(await api.account());
    } catch (error) {
      this.element.hidden = false;
      this.element.replaceChildren(errorNotice(error));
    }
  }

  /** @param {KeyView | null} key null if it is one of the configuration file, without limits */
  show(key) {
    const limits = key && limitsText(key);
    const children = key
      ? present([
          key.budget_state && part("Your key's budget", key.budget_state),
          key.team_budget_state && part(`Budget of the team ${key.team}`, key.team_budget_state),
          limits && h("p", { class: "hint" }, `Limits of your key: ${limits}.`),
        ])
      : [];
    this.element.hidden = children.length === 0;
    this.element.replaceChildren(...children);
  }
}

/** @param {string} title @param {NonNullable<KeyView["budget_state"]>} state */
const part = (title, state) =>
  h("div", { class: "budget-of" }, h("h3", { class: "eyebrow" }, title), budgetBar(state, title));
