/** The dialog with a key or a team: its details, forms, confirmations, and new secrets. */

import { AccountForm } from "./account-form.js";
import { addressOf, enterDialog, forgetDialog, leaveDialog, readAddress } from "./address.js";
import * as api from "./api.js";
import { budgetBar } from "./budgets.js";
import { byId, errorNotice, facts, h, present, table } from "./dom.js";
import { count, money } from "./format.js";
import { isFuture, statusBadge, time } from "./limits.js";
import { keepSignedIn } from "./session.js";

/** @import { KeyView, Session, TeamView } from "../types" */
/** @import { Child } from "./dom.js" */
/** @import { Saved } from "./account-form.js" */

const HOUR_S = 3600;
/** How long the old secret stays valid after a rotation. */
const OVERLAPS = /** @type {[string, number][]} */ ([
  ["Not at all", 0],
  ["1 hour", HOUR_S],
  ["24 hours", 24 * HOUR_S],
  ["7 days", 7 * 24 * HOUR_S],
  ["30 days", 30 * 24 * HOUR_S],
]);
const DEFAULT_OVERLAP_S = 24 * HOUR_S;

export class AccountDialog {
  element = byId("account", HTMLDialogElement);
  /** Whether a secret is shown that has not been copied, so that Escape must not close it. */
  guardsSecret = false;
  /** What the page's address names while the dialog is open. */
  name = "";

  /** @param {Session} session
   * @param {(message: string, isNew: boolean) => void} onchanged called after each change */
  constructor(session, onchanged) {
    this.session = session;
    this.onchanged = onchanged;
    // Nothing of a dialog stays in the document, above all no secret; this is for Escape.
    this.element.addEventListener("close", () => {
      this.element.replaceChildren();
      if (readAddress().view === "keys") leaveDialog();
    });
    this.element.addEventListener("cancel", (event) => {
      if (this.guardsSecret) event.preventDefault();
    });
  }

  /** Shows what the page's address names. A secret that was not copied stays.
   * @param {string | null} name of a key or a team, empty for a new one; null for a closed dialog */
  async follow(name) {
    const { open } = this.element;
    if (name === null) {
      if (open && this.guardsSecret) history.forward();
      else this.close();
      return;
    }
    if (open && this.name === name) return;
    const list = readAddress().filters.list === "teams" ? "teams" : "keys";
    if (name === "") {
      await this.create(list);
      return;
    }
    try {
      if (list === "keys") await this.showKey(await api.key(name));
      else await this.showTeam(await api.team(name));
    } catch (error) {
      this.open(bdi(name), errorNotice(error));
    }
  }

  /** Names what the dialog shows in the page's address, before it opens.
   * @param {string} name of a key or a team, empty for a new one */
  async enter(name) {
    this.name = name;
    await enterDialog(name);
  }

  /** @param {string | Node} title @param {Child[]} content */
  open(title, ...content) {
    this.guardsSecret = false;
    this.element.replaceChildren(
      h(
        "header",
        {},
        h("h2", { id: "account-title" }, title),
        h("button", { type: "button", class: "quiet", onclick: () => this.close() }, "Close"),
      ),
      ...present(content),
    );
    if (!this.element.open) this.element.showModal();
    this.element.scrollTop = 0;
  }

  close() {
    this.element.close();
    this.element.replaceChildren();
  }

  /** @param {"keys" | "teams"} list */
  async create(list) {
    await this.enter("");
    const form = new AccountForm(list, null, this.session, {
      onsaved: (saved) => this.created(saved),
      oncancel: () => this.close(),
    });
    this.open(list === "keys" ? "New key" : "New team", form.element);
    form.focus();
  }

  /** @param {Saved} saved */
  created(saved) {
    if ("secret" in saved) {
      this.onchanged(`Created the key ${saved.key.name}.`, true);
      this.showSecret(saved.key, saved.secret);
    } else {
      this.onchanged(`Created the team ${saved.name}.`, true);
      this.close();
    }
  }

  /** @param {KeyView} key */
  async showKey(key) {
    await this.enter(key.name);
    const isUsable = key.status !== "revoked";
    this.open(
      bdi(key.name),
      statusBadge(key),
      ...budgets([
        [`Budget of this key`, key.budget_state],
        [`Budget of the team ${key.team}`, key.team_budget_state],
      ]),
      facts([
        ["Secret", h("code", {}, `…${key.hint}`)],
        ["Owner", key.owner && bdi(key.owner)],
        ["Team", key.team && bdi(key.team)],
        ["Spent this month", money(key.spent_month_usd)],
        ["Created", time(key.created)],
        ["Expires", key.expires && time(key.expires)],
        ["Revoked", key.revoked && time(key.revoked)],
        [
          "Old secret works until",
          isUsable && isFuture(key.previous_until) ? time(key.previous_until) : null,
        ],
        ...limits(key),
        ["Models", key.models && key.models.join(", ")],
        ["Policies", key.policies && key.policies.join(", ")],
      ]),
      metadata(key.metadata),
      actions(
        isUsable && button("Edit", () => this.edit("keys", key)),
        isUsable && button("Rotate", () => this.rotate(key)),
        this.usageLink("key", key.name),
        isUsable && button("Revoke", () => this.revoke(key), "danger"),
      ),
    );
  }

  /** @param {TeamView} team */
  async showTeam(team) {
    await this.enter(team.name);
    this.open(
      bdi(team.name),
      ...budgets([["Budget of this team", team.budget_state]]),
      facts([
        ["Owner", team.owner && bdi(team.owner)],
        ["Keys", count(team.keys)],
        ["Spent this month", money(team.spent_month_usd)],
        ["Created", time(team.created)],
        ...limits(team),
      ]),
      metadata(team.metadata),
      actions(
        button("Edit", () => this.edit("teams", team)),
        this.usageLink("team", team.name),
        button("Delete", () => this.deleteTeam(team), "danger"),
      ),
    );
  }

  /** @param {"key" | "team"} filter @param {string} name */
  usageLink(filter, name) {
    const href = addressOf("overview", { period: "month", [filter]: name });
    return h("a", { href }, "Show usage");
  }

  /** @param {"keys" | "teams"} list @param {KeyView | TeamView} view */
  edit(list, view) {
    const form = new AccountForm(list, view, this.session, {
      onsaved: () => {
        this.onchanged(`Changed ${view.name}.`, false);
        this.close();
      },
      oncancel: () => this.close(),
    });
    this.open(h("span", {}, "Edit ", bdi(view.name)), form.element);
    form.focus();
  }

  /** @param {KeyView} key */
  rotate(key) {
    const select = h(
      "select",
      { id: "account-overlap", class: "control" },
      ...OVERLAPS.map(([name, seconds]) =>
        h("option", { value: seconds, selected: seconds === DEFAULT_OVERLAP_S }, name),
      ),
    );
    this.confirm(
      h("span", {}, "Rotate ", bdi(key.name)),
      [
        h("p", {}, "The key gets a new secret. Its name, its limits and its usage stay."),
        h(
          "div",
          { class: "field" },
          h("label", { for: select.id }, "How long the old secret stays valid"),
          select,
          h(
            "p",
            { class: "hint" },
            "Choose the time that clients need to take up the new secret. If the old one has leaked, choose “Not at all”.",
          ),
        ),
      ],
      "Rotate",
      async () => {
        const rotated = await api.rotateKey(key.name, { overlap_s: Number(select.value) });
        // Otherwise the next request would end the session, and the secret would be lost.
        if (key.name === this.session.key) keepSignedIn(rotated.secret);
        this.onchanged(`Rotated the key ${key.name}.`, false);
        this.showSecret(rotated.key, rotated.secret);
      },
    );
  }

  /** @param {KeyView} key */
  revoke(key) {
    this.confirm(
      h("span", {}, "Revoke ", bdi(key.name)),
      [
        h(
          "p",
          {},
          "Requests with this key are refused within a second. This cannot be undone, and no other key can get this name. Its usage stays.",
        ),
      ],
      "Revoke this key",
      async () => {
        await api.revokeKey(key.name);
        this.onchanged(`Revoked the key ${key.name}.`, false);
        this.close();
      },
      "danger",
    );
  }

  /** @param {TeamView} team */
  deleteTeam(team) {
    const name = bdi(team.name);
    this.confirm(
      h("span", {}, "Delete ", name),
      [
        h(
          "p",
          {},
          "This cannot be undone, and no other team can get this name. The team's usage stays.",
        ),
        team.keys > 0 &&
          h(
            "p",
            {},
            `The team has ${count(team.keys)} ${team.keys === 1 ? "key" : "keys"}. Revoke them or move them to another team first.`,
          ),
      ],
      "Delete this team",
      async () => {
        await api.deleteTeam(team.name);
        this.onchanged(`Deleted the team ${team.name}.`, false);
        this.close();
      },
      "danger",
    );
  }

  /** Asks whether to do something. The focus is on the button that does nothing.
   * @param {Node} title @param {Child[]} content @param {string} action
   * @param {() => Promise<void>} run @param {string} [kind] */
  confirm(title, content, action, run, kind = "primary") {
    const problem = h("div");
    const go = h("button", { type: "button", class: kind }, action);
    const cancel = button("Cancel", () => this.close());
    go.addEventListener("click", async () => {
      go.disabled = true;
      problem.replaceChildren();
      try {
        await run();
      } catch (error) {
        problem.replaceChildren(errorNotice(error));
        go.disabled = false;
      }
    });
    this.open(title, h("div", { class: "question" }, ...content), problem, actions(go, cancel));
    cancel.focus();
  }

  /** Shows a new secret, which only this dialog has.
   * @param {KeyView} key @param {string} secret */
  showSecret(key, secret) {
    const shell = [
      `export OPENAI_API_KEY=${secret}`,
      `export OPENAI_BASE_URL=${new URL("v1", new URL(".", location.href)).href}`,
    ].join("\n");
    const done = () => {
      // A gateway without keys is open to all. It has a key now, so the page needs one too.
      const needsKey = this.session.key === null;
      if (needsKey) forgetDialog();
      this.close();
      if (needsKey) location.reload();
    };
    this.open(
      h("span", {}, "Secret of ", bdi(key.name)),
      h(
        "p",
        { class: "notice warning" },
        "Copy this secret now. It is stored only as a hash, so it cannot be shown again.",
      ),
      this.copyable("Secret", secret),
      this.copyable("Example for the shell", shell),
      actions(button("Done", done, "primary")),
    );
    this.element.querySelector("header button")?.remove();
    this.guardsSecret = true;
    /** @type {HTMLElement | null} */ (this.element.querySelector(".copyable button"))?.focus();
  }

  /** @param {string} name @param {string} text */
  copyable(name, text) {
    const shown = h("pre", { tabindex: 0, role: "group", "aria-label": name }, text);
    const status = h("span", { class: "spoken", role: "status" });
    const copy = h("button", { type: "button" }, "Copy");
    copy.addEventListener("click", async () => {
      const isCopied = await copied(shown);
      copy.textContent = status.textContent = isCopied ? "Copied" : "Press Ctrl + C";
      if (isCopied) this.guardsSecret = false;
    });
    return h(
      "div",
      { class: "copyable" },
      h("h3", { class: "eyebrow" }, name),
      copy,
      shown,
      status,
    );
  }
}

/** Copies an element's text, or at least selects it: browsers allow scripts to write the clipboard
 * only on pages with HTTPS or on this machine.
 * @param {HTMLElement} element @returns {Promise<boolean>} whether the text was copied */
async function copied(element) {
  const selection = getSelection();
  selection?.selectAllChildren(element);
  try {
    await navigator.clipboard.writeText(element.textContent ?? "");
    return true;
  } catch {
    return document.execCommand("copy");
  }
}

/** Text that people chose; its direction does not affect its surroundings.
 * @param {string} text */
const bdi = (text) => h("bdi", {}, text);

/** @param {string} text @param {() => void} onclick @param {string} [kind] */
const button = (text, onclick, kind) => h("button", { type: "button", class: kind, onclick }, text);

/** @param {...Child} children */
const actions = (...children) => h("div", { class: "actions" }, ...children);

/** @param {[string, KeyView["budget_state"]][]} named */
const budgets = (named) =>
  named.map(
    ([name, state]) =>
      state &&
      h(
        "section",
        { class: "budget-of" },
        h("h3", { class: "eyebrow" }, name),
        budgetBar(state, name),
      ),
  );

/** @param {KeyView | TeamView} view @returns {Child[][]} */
const limits = (view) => [
  ["Requests per minute", view.requests_per_minute && count(view.requests_per_minute)],
  ["Tokens per minute", view.tokens_per_minute && count(view.tokens_per_minute)],
  ["Parallel requests", view.parallel_requests && count(view.parallel_requests)],
];

/** @param {Record<string, string>} values */
function metadata(values) {
  const rows = Object.entries(values).map(([name, value]) => [bdi(name), bdi(value)]);
  return rows.length > 0 && table("Metadata", ["Metadata", "Value"], rows);
}
