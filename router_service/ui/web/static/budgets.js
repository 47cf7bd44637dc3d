/** Budgets: a bar of what is spent, and a sentence about how long the rest lasts. */

import { h } from "./dom.js";
import { money, percent } from "./format.js";

/** @import { BudgetView } from "../types" */

/** @type {Record<BudgetView["period"], string>} */
const PERIODS = { day: "today", week: "this week", month: "this month", total: "in total" };

/** What is spent of a budget, with a mark for the share of the period that has passed.
 * @param {BudgetView} budget @param {string} name of the meter, for screen readers */
export function budgetBar(budget, name) {
  const { usd, period, spent_usd, starts, resets } = budget;
  const share = usd > 0 ? Math.min(1, spent_usd / usd) : 1;
  const from = Date.parse(starts);
  const passed = resets ? (Date.now() - from) / (Date.parse(resets) - from) : null;
  const amount = `${money(spent_usd)} of ${money(usd)} ${PERIODS[period]}`;
  const forecast = forecastOf(budget);
  return h(
    "div",
    { class: `budget ${stateOf(budget)}` },
    h(
      "div",
      {
        class: "bar",
        role: "meter",
        "aria-label": name,
        "aria-valuemin": 0,
        "aria-valuemax": 100,
        "aria-valuenow": Math.round(share * 100),
        "aria-valuetext": `${amount}, ${forecast}`,
        title: passed === null ? null : `${percent(passed, 0)} of the period has passed`,
      },
      h("i", { style: { "--share": share } }),
      passed !== null && h("b", { style: { "--passed": Math.min(1, Math.max(0, passed)) } }),
    ),
    h("span", {}, amount),
    h("small", {}, forecast),
  );
}

/** @param {BudgetView} budget */
function stateOf({ usd, spent_usd, ends_by }) {
  if (spent_usd >= usd) return "spent";
  return ends_by === null ? "lasts" : "short";
}

/** @param {BudgetView} budget @returns {string} how long the rest of the budget lasts */
export function forecastOf({ usd, period, spent_usd, resets, ends_by }) {
  if (usd === 0) return "nothing may be spent";
  if (spent_usd >= usd) return resets ? `spent until ${day(resets, period)}` : "spent";
  if (ends_by) return `ends about ${day(ends_by, period)}`;
  return resets ? `lasts until ${day(resets, period)}` : "no end in sight";
}

/** A day such as `24 Nov`; a time for budgets of a day. Periods begin at 0:00 UTC.
 * @param {string} iso @param {BudgetView["period"]} period */
function day(iso, period) {
  const at = new Date(iso);
  if (period === "day")
    return `${at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: "UTC" })} UTC`;
  const isThisYear = at.getUTCFullYear() === new Date().getUTCFullYear();
  return at.toLocaleDateString("en-GB", {
    day: "numeric",
    month: "short",
    year: isThisYear ? undefined : "numeric",
    timeZone: "UTC",
  });
}
