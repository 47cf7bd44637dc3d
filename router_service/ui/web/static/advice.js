/** Which few models are enough: the best pools of one to four models, computed on demand. */

import * as api from "./api.js";
import { errorNotice, h, present, table } from "./dom.js";
import { count, modelOf, percent, points, usd, usdPer1k, within } from "./format.js";
import { policyLabel } from "./policies.js";

/** @import { Advice, ArtifactCard, PoolFigures, TaskAdvice } from "../types" */

/** @type {["once" | "verified", string][]} */
const KINDS = [
  ["once", "Choosing once"],
  ["verified", "Verified answers"],
];

/** A section that compares pools of models when its button is pressed.
 * @param {ArtifactCard} card */
export function advice(card) {
  const place = h("div", { "aria-live": "polite" });
  const compare = async (/** @type {HTMLElement[]} */ buttons, /** @type {boolean} */ known) => {
    buttons.forEach((button) => button.setAttribute("disabled", ""));
    place.replaceChildren(
      h("p", { class: "hint" }, "Comparing pools of models. This takes some seconds."),
    );
    try {
      place.replaceChildren(...present(described(card, await api.advice(known))));
    } catch (error) {
      place.replaceChildren(errorNotice(error));
    }
    buttons.forEach((button) => button.removeAttribute("disabled"));
  };
  /** @type {HTMLElement[]} */
  const buttons = [];
  const button = (/** @type {string} */ name, /** @type {boolean} */ known) =>
    h("button", { type: "button", onclick: () => compare(buttons, known) }, name);
  buttons.push(button("Compare the configured models", false));
  if (card.known_arms > card.arms.length)
    buttons.push(button(`Compare all ${card.known_arms} models that the router knows`, true));
  return h(
    "section",
    { class: "card" },
    h("h3", { class: "eyebrow" }, "Which models are enough"),
    h(
      "p",
      { class: "hint" },
      "A few models often reach the accuracy of all. This finds the most accurate pools of one to four models, at a fifth of the best single model's cost or less.",
    ),
    h("div", { class: "row" }, ...buttons),
    place,
  );
}

/** @type {[string, string][]} */
const TASKS = [
  ["coding", "Coding"],
  ["mcp", "MCP servers"],
  ["service", "Customer service"],
  ["research", "Research"],
];

/** A section that compares the configured models on whole tasks when a kind is chosen. */
export function taskAdvice() {
  const place = h("div", { "aria-live": "polite" });
  const compare = async (/** @type {string} */ task) => {
    try {
      place.replaceChildren(...present(describedTasks(await api.taskAdvice(task))));
    } catch (error) {
      place.replaceChildren(errorNotice(error));
    }
  };
  return h(
    "section",
    { class: "card" },
    h("h3", { class: "eyebrow" }, "Which model for an agent's whole tasks"),
    h(
      "p",
      { class: "hint" },
      "The cheapest of the configured models that solves at most 2 points less of a published benchmark's tasks than the best of them.",
    ),
    h(
      "div",
      { class: "row" },
      ...TASKS.map(([task, name]) =>
        h("button", { type: "button", onclick: () => compare(task) }, name),
      ),
    ),
    place,
  );
}

/** @param {TaskAdvice} advice */
function describedTasks(advice) {
  const rows = advice.models.map((each) => [
    each.model === advice.chosen ? `${each.model} (chosen)` : each.model,
    `${percent(each.success)} ${within([each.low, each.high], (share) => percent(share))}`,
    each.usd_per_task === null ? "unknown" : usd(each.usd_per_task),
    count(each.tasks),
    each.source,
  ]);
  return [
    h("p", {}, advice.why),
    rows.length > 0 &&
      table(
        `Whole tasks: ${advice.task}`,
        ["Model", "Solved", "Cost per task", "Tasks", "Source"],
        rows,
      ),
    advice.unknown.length > 0 &&
      h("p", { class: "hint" }, `Without figures: ${advice.unknown.join(", ")}.`),
    h(
      "p",
      { class: "hint" },
      "Brackets are 95% intervals. Costs are those at this gateway's prices. The figures are averages over the benchmark's tasks, not over yours.",
    ),
  ];
}

/** @param {ArtifactCard} card @param {Advice} advice */
function described(card, advice) {
  const shown = KINDS.filter(([kind]) => advice.recommended.some((each) => each.kind === kind));
  return [
    h(
      "p",
      {},
      `The most accurate of ${advice.arms.length} models alone is ${modelOf(card.arms, advice.best_single)}.`,
    ),
    ...shown.flatMap(([kind, title]) => [
      h("h4", {}, `${title}, at no more than ${percent(advice.cost_share, 0)} of its cost`),
      recommended(card, advice, kind),
      h(
        "details",
        {},
        h("summary", {}, `All efficient pools: ${title.toLowerCase()}`),
        efficient(card, advice, kind, title),
      ),
    ]),
    !advice.has_verified &&
      h(
        "p",
        { class: "notice" },
        "This router has no figures of verified answers for other pools.",
      ),
    h(
      "p",
      { class: "hint" },
      `Measured on ${count(advice.queries)} queries that the router had not seen; brackets are 95% intervals. ${count(advice.pools)} pools were compared, and rules picked, on ${count(advice.searched)} of these queries, which favours what was lucky there. The column “Elsewhere” compares with the best single model on the other queries.`,
    ),
  ];
}

/** @param {ArtifactCard} card @param {Advice} advice @param {"once" | "verified"} kind */
function recommended(card, advice, kind) {
  /** @type {string[]} */
  let before = [];
  const rows = advice.recommended
    .filter((each) => each.kind === kind)
    .map(({ figures, unseen_difference }) => {
      const isLarger = before.length > 0 && before.every((arm) => figures.arms.includes(arm));
      const name = isLarger
        ? `… adding ${models(
            card,
            figures.arms.filter((arm) => !before.includes(arm)),
          ).join(", ")}`
        : models(card, figures.arms).join(" + ");
      before = figures.arms;
      return [...cells(figures, name), points(unseen_difference.value)];
    });
  return table(`Best pool of each size: ${kind}`, [...HEAD, "Elsewhere"], rows);
}

/** @param {ArtifactCard} card @param {string[]} arms @returns {string[]} */
const models = (card, arms) => arms.map((arm) => modelOf(card.arms, arm));

/** @param {ArtifactCard} card @param {Advice} advice @param {"once" | "verified"} kind
 * @param {string} title */
const efficient = (card, advice, kind, title) =>
  table(
    `Efficient pools: ${title}`,
    HEAD,
    advice.efficient
      .filter((each) => each.kind === kind)
      .map((each) => cells(each, models(card, each.arms).join(" + "))),
  );

const HEAD = [
  "Models",
  "Rule",
  "Accuracy",
  "Against the best single model",
  "Per 1,000 requests",
  "Share of its cost",
];

/** @param {PoolFigures} figures @param {string} name */
function cells({ arms, point }, name) {
  const versus = point.versus_best;
  return [
    name,
    arms.length === 1 ? "alone" : policyLabel(point.policy),
    `${percent(point.accuracy.value)} ${within(point.accuracy_interval, (value) => percent(value))}`,
    versus ? `${points(versus.difference)} ${within(versus.difference_interval, points)}` : "",
    usdPer1k(point.cost_usd.value),
    versus?.cost_share ? percent(versus.cost_share) : "",
  ];
}
