/** The artifact: its provenance and its measured results. */

import * as api from "./api.js";
import { byId, facts, h, showError, table } from "./dom.js";
import { count, percent, points, usdPer1k, within } from "./format.js";
import { curves, frontierPlot, legend } from "./frontier.js";

/** @typedef {import("./api.js").Card} Card */
/** @typedef {import("./api.js").Point} Point */
/** @typedef {import("./api.js").Measure} Measure */

export async function startArtifact() {
  try {
    const card = await api.artifact();
    byId("artifact-body").replaceChildren(...described(card));
  } catch (error) {
    showError("artifact-error", error);
  }
}

/** @param {Card} card */
function described(card) {
  return [
    h("div", { class: "head" }, h("div", {},
      h("h2", {}, card.name),
      h("p", { class: "lead" }, `A trained router that chooses among ${card.arms.length} arms. An arm is a model, or a model with a reasoning effort. Created on ${new Date(card.provenance.created).toLocaleDateString("en-GB", { dateStyle: "long" })} from commit `, h("code", {}, card.provenance.commit.slice(0, 12)), "."))),
    h("section", { class: "card" }, h("h3", { class: "eyebrow" }, "Accuracy and cost on queries held out from training"), metrics(card.metrics)),
    frontier(card),
    h("section", { class: "card" }, h("h3", { class: "eyebrow" }, "Arms, by expected cost"), arms(card)),
    h("div", { class: "pair" },
      h("section", { class: "card" }, h("h3", { class: "eyebrow" }, "Model"), model(card)),
      h("section", { class: "card" }, h("h3", { class: "eyebrow" }, "Provenance"), provenance(card))),
  ];
}

/** @type {Record<string, string>} */
const TITLES = { default: "Default policy", verified: "Policy “verified” at its default price", best_single: "Best single model", oracle: "Oracle (cheapest correct arm for each query)" };

/** Accuracies with their costs, and other measurements.
 * @param {Record<string, Measure>} measures */
function metrics(measures) {
  const priced = Object.keys(TITLES).filter((name) => measures[`${name}_accuracy`] && measures[`${name}_cost_usd`]);
  const rest = Object.keys(measures).filter((name) => !priced.some((each) => name === `${each}_accuracy` || name === `${each}_cost_usd`));
  return facts([
    ...priced.map((name) => [TITLES[name], tile(measures[`${name}_accuracy`], percent, measures[`${name}_cost_usd`])]),
    ...rest.map((name) => [name.replaceAll("_", " ").replace("auc", "AUC").replace(/^./, (first) => first.toUpperCase()), tile(measures[name], (value) => value.toFixed(3))]),
  ], "facts tiles");
}

/** @param {Measure} measure @param {(value: number) => string} form @param {Measure} [cost] */
function tile({ value, stderr, n }, form, cost) {
  const paid = cost && h("small", {}, `${usdPer1k(cost.value)} ± ${usdPer1k(cost.stderr)} per 1,000 requests`);
  return h("span", {}, form(value), h("small", {}, `± ${form(stderr)}, n = ${count(n)}`), paid);
}

/** @param {Card} card */
function frontier(card) {
  if (card.frontier.length === 0) return h("p", { class: "notice" }, "This artifact has no measured policies.");
  const plot = h("div", { class: "plot" });
  frontierPlot(plot, card, { current: card.default_policy, height: 400 });
  return h("section", { class: "card" }, h("h3", { class: "eyebrow" }, "Accuracy and cost of policies"), plot,
    legend(card, "default of this gateway"),
    card.verified_policy && card.verified_frontier.length === 0 && h("p", { class: "notice" }, "Verified answers have no figures here: they were measured for all arms of the artifact at its own prices."),
    h("details", {}, h("summary", {}, `All ${curves(card).flatMap(({ points }) => points).length} measured policies`), policies(card)));
}

/** @param {Card} card */
function policies(card) {
  const named = { ...card.policies, ...(card.verified_policy && { verified: card.verified_policy }) };
  const names = (/** @type {string} */ policy) => Object.keys(named).filter((name) => named[name] === policy).join(", ");
  const measured = curves(card).flatMap(({ points }) => points);
  const rows = measured.sort((a, b) => a.cost_usd.value - b.cost_usd.value).map((point) => [
    `${point.policy} ${names(point.policy)}`.trim(),
    `${percent(point.accuracy.value)} ${within(point.accuracy_interval, (value) => percent(value))}`,
    point.versus_best ? points(point.versus_best.difference) : "",
    `${usdPer1k(point.cost_usd.value)} ${within(point.cost_usd_interval, usdPer1k)}`,
    point.versus_best?.cost_share ? percent(point.versus_best.cost_share) : ""]);
  return table("Measured policies by rising cost, with 95% intervals", ["Policy", "Accuracy", "Difference to best single model", "USD per 1,000", "Share of its cost"], rows);
}

/** @param {Card} card */
function arms(card) {
  const rows = card.arms.map((/** @type {any} */ arm) => [
    arm.arm, arm.model, usdPer1k(arm.cost_usd), arm.profile.input_tokens.toFixed(0), arm.profile.output_tokens.toFixed(0),
    arm.profile.seconds ? `${arm.profile.seconds.toFixed(1)} s` : "", count(arm.profile.n)]);
  return table("Arms by rising expected cost", ["Arm", "Configured model", "USD per 1,000", "Tokens in", "Tokens out", "Time", "Requests measured"], rows);
}

/** @param {Card} card */
function model(card) {
  const { encoder } = card;
  return facts([
    ["Encoder", encoder.name], ["Size", `${(encoder.parameters / 1e6).toFixed(1)} M parameters, ${encoder.layers} ${encoder.layers === 1 ? "layer" : "layers"} of width ${encoder.hidden_size}`],
    ["Window", `${card.budget_tokens} tokens, at most ${card.tool_budget_tokens} for tools`], ["Template", h("code", {}, card.template)],
    ["Structural features", card.features], ["Calibration", card.calibration],
    ["Policies", Object.entries(card.policies).map(([name, rule]) => `${name}: ${rule}`).join(", ")],
    ["Default policy of this gateway", card.default_policy],
  ], "facts list");
}

/** @param {Card} card */
function provenance({ provenance, version }) {
  const versions = Object.entries(provenance.versions).map(([name, number]) => `${name} ${number}`).join(", ");
  return h("div", {},
    facts([
      ["Created", provenance.created], ["Commit", h("code", {}, provenance.commit)], ["Seed", provenance.seed],
      ["SHA-256 of the data", h("code", {}, provenance.data_sha256)], ["Library versions", versions || null], ["Gateway", `Switchcraft ${version}`],
    ], "facts list"),
    h("details", {}, h("summary", {}, "Training configuration"), h("pre", { tabindex: 0, "aria-label": "Training configuration" }, provenance.config)));
}
