/** The dialog with everything that is known of one decision. */

import { enterDialog, leaveDialog, readAddress } from "./address.js";
import * as api from "./api.js";
import { reasonText } from "./decisions.js";
import { byId, errorNotice, facts, h, present, table } from "./dom.js";
import { duration, percent, usd, usdPer1k } from "./format.js";
import { policyLabel, policyText } from "./policies.js";
import { requestFacts } from "./request-facts.js";
import { FAMILIARITY, familiarity } from "./verdict.js";
import { verification, walkByKey } from "./verification.js";

/** @import { BudgetChange, ExplainedDecision } from "../types" */
/** @import { Neighbours } from "./verification.js" */

export class DecisionDialog {
  element = byId("details", HTMLDialogElement);

  constructor() {
    this.element.addEventListener("click", (event) => {
      if (event.target === this.element) this.element.close(); // the backdrop
    });
    this.element.addEventListener("close", () => this.left());
    this.element.addEventListener("keydown", walkByKey);
  }

  /** Opens the dialog, and names it in the page's address.
   * @param {string} id */
  async show(id) {
    await enterDialog(id);
    await this.load(id);
  }

  /** Shows what the page's address names.
   * @param {string | null} id of a decision; null for a closed dialog */
  follow(id) {
    if (id === null) this.element.close();
    else if (!this.element.open || this.element.dataset.decision !== id) this.load(id);
  }

  /** Removes the dialog from the address, unless that was the reason to close it. */
  left() {
    if (readAddress().dialog === this.element.dataset.decision) leaveDialog();
  }

  /** @param {string} id */
  async load(id) {
    const close = () => this.element.close();
    const body = h("div", {}, h("p", { class: "hint" }, "Loading …"));
    const closing = h("button", { type: "button", class: "quiet", onclick: close }, "Close");
    const title = h("h2", { id: "details-title" }, "Request ", h("code", {}, id));
    const show = () => this.element.replaceChildren(h("header", {}, title, closing), body);
    this.element.dataset.decision = id;
    if (!this.element.open) {
      show();
      this.element.showModal();
    }
    try {
      const { request, decision, missing, conversation } = await api.request(id);
      if (this.element.dataset.decision !== id) return; // another decision is shown meanwhile
      const at = conversation.indexOf(id);
      const shows = (/** @type {number} */ index) => {
        const other = conversation[index];
        return at >= 0 && other ? () => this.show(other) : null;
      };
      const neighbours = { before: shows(at - 1), after: shows(at + 1) };
      const known = request ? requestFacts(request, missing) : [];
      body.replaceChildren(
        ...present([
          at >= 0 && conversation.length > 1 && conversationBar(at, conversation, neighbours),
          ...(decision ? described(decision, neighbours) : known),
        ]),
      );
    } catch (error) {
      body.replaceChildren(errorNotice(error));
    }
    // From one request of a conversation to the next, the focus stays in the dialog.
    const hadFocus = this.element.contains(document.activeElement);
    if (!closing.isConnected) show();
    this.element.scrollTop = 0;
    if (!hadFocus || this.element.contains(document.activeElement)) return;
    const next = /** @type {HTMLElement | null} */ (body.querySelector('.walk [data-by="1"]'));
    (next ?? closing).focus();
  }
}

/** Which request of its conversation a decision is for.
 * @param {number} at @param {string[]} decisions @param {Neighbours} neighbours */
function conversationBar(at, decisions, { before, after }) {
  const button = (
    /** @type {string} */ name,
    /** @type {1 | -1} */ by,
    /** @type {(() => void) | null} */ onclick,
  ) => h("button", { type: "button", "data-by": by, disabled: onclick === null, onclick }, name);
  return h(
    "nav",
    { class: "conversation", "aria-label": "Conversation" },
    h("span", { class: "hint" }, `Request ${at + 1} of ${decisions.length} of this conversation`),
    button("Earlier", -1, before),
    button("Later", 1, after),
  );
}

/** @param {ExplainedDecision} details @param {Neighbours} neighbours */
function described(details, neighbours) {
  const { probabilities, cost_usd } = details;
  const label = (/** @type {string} */ arm) => details.labels[arm] ?? arm;
  const arms = Object.entries(probabilities ?? {}).sort((a, b) => b[1] - a[1]);
  return present([
    h("p", { class: "explanation" }, details.explanation),
    facts(
      [
        ["Answered by", details.model],
        details.arm !== details.model && ["Measured as", details.arm],
        ["Reason", reasonText(details.reason)],
        ["Policy", details.policy && policyLabel(policyOf(details))],
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
            : h("span", {}, familiarity(details.familiarity), h("small", {}, ` ${FAMILIARITY}`)),
        ],
      ].filter((fact) => Array.isArray(fact)),
    ),
    details.budget && budgetTable(details.budget),
    ...verification(
      details.candidates ?? [],
      details.reason === "chat" ? null : details.unverified,
      {
        policy: policyOf(details),
        probabilities: probabilities ?? {},
        costs_usd: cost_usd ?? {},
        why: details.explanation,
        neighbours,
      },
    ),
    arms.length > 0 &&
      table(
        "Prediction for each model",
        ["Model", "Probability correct", "USD per 1,000"],
        arms.map(([arm, probability]) => [
          arm === details.arm
            ? h("b", {}, label(arm), " (chosen)")
            : details.threshold !== null && details.qualifying_arms.includes(arm)
              ? h("span", {}, label(arm), " (enough)")
              : label(arm),
          percent(probability),
          cost_usd ? usdPer1k(cost_usd[arm]) : "",
        ]),
      ),
  ]);
}

/** @param {ExplainedDecision} details @returns {string} the rule, after the name that was asked for */
const policyOf = ({ policy, policy_name }) =>
  policy_name ? `${policy_name} (${policy})` : (policy ?? "");

/** The policy that a budget has replaced, and the one that applied.
 * @param {BudgetChange} change */
function budgetTable(change) {
  const figures = (
    /** @type {number | null} */ accuracy,
    /** @type {number | null} */ cost_usd,
  ) => [
    accuracy === null ? "not measured" : percent(accuracy),
    cost_usd === null ? "not measured" : usdPer1k(cost_usd),
  ];
  return table(
    "What the budget changed",
    ["Policy", "Measured accuracy", "USD per 1,000"],
    [
      [
        h("span", {}, policyText(change.asked), " (without the budget)"),
        ...figures(change.asked_accuracy, change.asked_cost_usd),
      ],
      [
        h("b", {}, policyText(change.policy), " (applied)"),
        ...figures(change.expected_accuracy, change.expected_cost_usd),
      ],
    ],
  );
}
