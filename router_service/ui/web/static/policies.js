/** What people read for a policy: its published name first, then its rule, such as `theta=0.87`. */

import { h } from "./dom.js";
import { POLICY_NAMES } from "./session.js";

/** @param {string} policy a rule, or a name with its rule, as in `economy (utility=0.001)`
 * @returns {{name: string | null, rule: string}} */
export function readPolicy(policy) {
  const named = /^(.+) \((.+)\)$/.exec(policy);
  if (named) return { name: named[1], rule: named[2] };
  return { name: POLICY_NAMES[policy] ?? null, rule: policy };
}

/** @param {string} policy as in `readPolicy` @returns {string} */
export function policyText(policy) {
  const { name, rule } = readPolicy(policy);
  return name === null ? rule : `${name} (${rule})`;
}

/** A policy whose rule is less prominent than its name.
 * @param {string} policy as in `readPolicy` */
export function policyLabel(policy) {
  const { name, rule } = readPolicy(policy);
  return name === null
    ? h("span", { class: "policy-name" }, rule)
    : h("span", { class: "policy-name" }, name, " ", h("small", {}, `(${rule})`));
}
