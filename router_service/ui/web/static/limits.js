/** Limits and states of keys and teams, in words. */

import { h } from "./dom.js";
import { count } from "./format.js";

/** @import { KeyView, TeamView } from "../types" */

/** @param {KeyView | TeamView} view @returns {string} the limits that are set, except the budget */
export function limitsText({ requests_per_minute, tokens_per_minute, parallel_requests }) {
  const parts = [
    requests_per_minute !== null && `${count(requests_per_minute)} requests/min`,
    tokens_per_minute !== null && `${count(tokens_per_minute)} tokens/min`,
    parallel_requests !== null && `${count(parallel_requests)} parallel`,
  ];
  return parts.filter(Boolean).join(", ");
}

/** @param {KeyView} key */
export function statusBadge({ status, is_admin, previous_until }) {
  const isRotating = status === "active" && isFuture(previous_until);
  return h(
    "span",
    { class: "badges" },
    h("span", { class: `badge ${status}` }, status),
    is_admin && h("span", { class: "badge" }, "admin"),
    isRotating &&
      h(
        "span",
        { class: "badge", title: `The old secret works until ${time(previous_until)}` },
        "rotating",
      ),
  );
}

/** @param {string | null} iso @returns {iso is string} */
export const isFuture = (iso) => iso !== null && Date.parse(iso) > Date.now();

/** @param {string} iso @returns {string} in the local time zone */
export const time = (iso) =>
  new Date(iso).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
