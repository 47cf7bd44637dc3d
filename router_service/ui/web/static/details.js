/** The dialog with everything that is known of one decision. */

import * as api from "./api.js";
import { reasonText } from "./decisions.js";
import { byId, errorNotice, facts, h, present, table } from "./dom.js";
import { duration, percent, usd, usdPer1k } from "./format.js";
import { requestFacts } from "./request-facts.js";
import { steps } from "./steps.js";

/** @import { BudgetChange, ExplainedDecision } from "../types" */

export class DecisionDialog {
  element = byId("details", HTMLDialogElement);

  constructor() {
    this.element.addEventListener("click", (event) => {
      if (event.target === this.element) this.element.close(); // the backdrop
    });
  }

  /** @param {string} id */
  async show(id) {
    const close = () => this.element.close();
    const body = h("div", {}, h("p", { class: "hint" }, "Loading …"));
    this.element.replaceChildren(
      h(
        "header",
        {},
        h("h2", { id: "details-title" }, "Request ", h("code", {}, id)),
        h("button", { type: "button", class: "quiet", onclick: close }, "Close"),
      ),
      body,
    );
    this.element.showModal();
    try {
      const { request, decision, missing } = await api.request(id);
      const known = decision ? described(decision) : request ? requestFacts(request, missing) : [];
      body.replaceChildren(...known);
    } catch (error) {
      body.replaceChildren(errorNotice(error));
    }
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
        ["Reason", reasonText(details.reason)],
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
    details.budget && budgetTable(details.budget),
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
        h("span", {}, change.asked, " (without the budget)"),
        ...figures(change.asked_accuracy, change.asked_cost_usd),
      ],
      [
        h("b", {}, change.policy, " (applied)"),
        ...figures(change.expected_accuracy, change.expected_cost_usd),
      ],
    ],
  );
}
