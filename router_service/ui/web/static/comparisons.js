/** How the answers of a second model (`router.compare`) compare with the delivered ones. */

import * as api from "./api.js";
import { errorNotice, h, present, table } from "./dom.js";
import { count, duration, percent, usdPer1k, within } from "./format.js";

/** @import { ComparedGroup, ComparedModel } from "../types" */

const HEAD = [
  "Requests of",
  "Compared",
  "Same calls",
  "Cost per 1,000",
  "Its cost",
  "Time",
  "Its time",
];

/** A section that appears once there are comparisons. */
export function comparisons() {
  const section = h("section", { class: "card", hidden: true });
  api.comparisons().then(
    (models) => {
      section.replaceChildren(
        h("h3", { class: "eyebrow" }, "Compared with another model"),
        ...models.flatMap(described),
      );
      section.hidden = models.length === 0;
    },
    (error) => {
      section.replaceChildren(errorNotice(error));
      section.hidden = false;
    },
  );
  return section;
}

/** @param {ComparedModel} model */
function described(model) {
  const { total, keys, tools } = model;
  return present([
    h("p", {}, model.sentence),
    total &&
      table(`Compared with ${model.other}`, HEAD, [
        cells("all", total),
        ...keys.map((each) => cells(`key ${each.name}`, each)),
        ...tools.map((each) => cells(`tool ${each.name}`, each)),
      ]),
    h(
      "p",
      { class: "hint" },
      `Its answers are never delivered. They have cost $${model.spent_usd.toFixed(4)} in 30 days${model.failed ? `, and ${count(model.failed)} requests got no answer` : ""}. Brackets are 95% intervals. Two answers in words count as the same.`,
    ),
  ]);
}

/** @param {string} name @param {ComparedGroup} group */
const cells = (name, group) => [
  name,
  count(group.comparisons),
  `${percent(group.same)} ${within([group.low, group.high], (share) => percent(share))}`,
  usdPer1k(group.usd),
  usdPer1k(group.other_usd),
  duration(group.seconds),
  duration(group.other_seconds),
];
