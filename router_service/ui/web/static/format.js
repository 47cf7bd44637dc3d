/** Formats numbers for people. */

/** @import { Control } from "../types" */

/** @param {number} share @param {number} [digits] */
export const percent = (share, digits = 1) => `${(share * 100).toFixed(digits)}%`;

/** Costs are shown per thousand requests, because the cost of one is too small to read.
 * @param {number} usd of one request */
export const usdPer1k = (usd) => `$${precise(usd * 1000)}`;

/** @param {number} usd */
export const usd = (usd) => `$${precise(usd)}`;

/** @param {number} seconds */
export const duration = (seconds) =>
  seconds < 1
    ? `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`
    : `${seconds.toFixed(2)} s`;

/** What people read for an arm: its model's name, and the arm's if it differs.
 * @param {{arm: string, model: string}} served */
export const armLabel = ({ arm, model }) => (arm === model ? arm : `${model} (${arm})`);

/** The configured model of an arm, or the arm if none is configured for it.
 * @param {{arm: string, model: string}[]} served @param {string} arm @returns {string} */
export const modelOf = (served, arm) => served.find((each) => each.arm === arm)?.model ?? arm;

/** @param {number} count */
export const count = (count) => count.toLocaleString("en-US");

/** @param {number} points a difference between shares */
export const points = (points) => {
  const text = Math.abs(points * 100).toFixed(1);
  return `${text === "0.0" ? "±" : points < 0 ? "−" : "+"}${text}`;
};

/** @param {[number, number] | null | undefined} interval @param {(value: number) => string} form */
export const within = (interval, form) =>
  interval ? `[${form(interval[0])}, ${form(interval[1])}]` : "";

/** @param {number} unix_s */
export const clock = (unix_s) => new Date(unix_s * 1000).toLocaleTimeString("en-GB");

/** No decimals from 100, two from 0.1, and two significant digits below.
 * @param {number} value */
function precise(value) {
  if (value >= 100) return value.toFixed(0);
  if (value >= 0.1) return value.toFixed(2);
  return value === 0
    ? "0"
    : value.toPrecision(2).replace(/e.*$/, (tail) => ` × 10^${Number(tail.slice(1))}`);
}

/** @param {string} policy such as `drift=0.05` @returns {{rule: string, value: number}} */
export function parsePolicy(policy) {
  const [rule, value] = policy.split("=");
  return { rule, value: Number(value) };
}

/** @param {{rules: Control[]}} card @param {string} policy such as `drift=0.05` @returns {Control | undefined} what to show of its kind */
export const controlOf = ({ rules }, policy) =>
  rules.find(({ rule }) => rule === parsePolicy(policy).rule);

/** @param {Control} control @param {number} value of such a policy */
export function policyValue({ unit }, value) {
  if (unit === "usd") return usd(value);
  return unit === "share" ? percent(value, 0) : String(+(value * 100).toFixed(2));
}

/** A sum of money, also a very small one.
 * @param {number} usd */
export function money(usd) {
  if (usd === 0) return "$0";
  const size = Math.abs(usd);
  const digits = size >= 1000 ? 0 : Math.max(2, Math.min(8, 1 - Math.floor(Math.log10(size))));
  return `${usd < 0 ? "−" : ""}$${size.toLocaleString("en-US", { minimumFractionDigits: Math.min(digits, 2), maximumFractionDigits: digits })}`;
}
