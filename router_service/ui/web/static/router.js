/** The router: how good it is, how it decides, and where it comes from. */

import { advice, taskAdvice } from "./advice.js";
import { comparisons } from "./comparisons.js";
import * as api from "./api.js";
import { byId, facts, h, inline, present, showError, table } from "./dom.js";
import {
  armLabel,
  controlOf,
  count,
  modelOf,
  parsePolicy,
  percent,
  points,
  policyValue,
  usdPer1k,
  within,
} from "./format.js";
import { curves, FrontierPlot, legend } from "./frontier.js";
import { policyLabel, policyText, readPolicy } from "./policies.js";

/** @import { ArtifactCard } from "../types" */

export async function startRouter() {
  try {
    const card = await api.artifact();
    byId("router-body").replaceChildren(...present(described(card)));
  } catch (error) {
    showError("router-error", error);
  }
}

/** @param {ArtifactCard} card */
function described(card) {
  const measured = card.metrics.default_accuracy?.n;
  return [
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h2", {}, `Router: ${card.name}`),
        h(
          "p",
          { class: "lead" },
          `${purpose(card)} It was trained on ${date(card.provenance.created)}.`,
        ),
        card.knowledge && h("p", { class: "lead" }, card.knowledge),
        ...card.expected.map((sentence) => h("p", { class: "lead" }, sentence)),
      ),
    ),
    card.execution.warning && h("p", { class: "notice" }, card.execution.warning),
    ...standIns(card),
    titled(
      "How good it is",
      measured !== undefined &&
        `Measured on ${count(measured)} queries that the router had not seen in training. ± is one standard error.`,
      metrics(card),
    ),
    frontier(card),
    titled(
      "Models that it chooses among",
      "A model, or a model with a reasoning effort, is called an arm. Cost, tokens and time are means over the measured requests, at the prices of this gateway.",
      arms(card),
    ),
    card.unrouted.length > 0 &&
      titled(
        "Models served by name only",
        "The router never chooses these models. A request gets one by naming it.",
        unrouted(card),
      ),
    card.has_held_out && card.arms.length > 0 && advice(card),
    taskAdvice(),
    comparisons(),
    h(
      "div",
      { class: "pair" },
      titled("How it decides", null, model(card)),
      titled("Named policies", null, policyNames(card)),
    ),
    titled("Where it comes from", null, provenance(card)),
  ];
}

/** @param {ArtifactCard} card */
function purpose({ arms, model_name }) {
  if (arms.length === 0)
    return `This router has measured none of the models that are configured here, so it cannot choose: requests for ${model_name} need router.chat_model, and the figures below are those of models that this gateway does not have.`;
  return `This router estimates how likely each of ${arms.length} models is to answer a request correctly, and then chooses one by a policy.`;
}

/** A warning for each arm whose model is not the measured one.
 * @param {ArtifactCard} card */
function standIns({ arms }) {
  const others = arms.filter((arm) => arm.basis === "stand_in");
  return others.map(({ arm, model }) =>
    h(
      "p",
      { class: "notice" },
      `${model} stands in for ${arm} (router.stand_ins). The figures of ${arm} are those of another model.`,
    ),
  );
}

/** @param {ArtifactCard} card */
function unrouted(card) {
  const rows = card.unrouted.map(({ model, reason, remedy }) => [
    model,
    reason,
    h("span", {}, ...inline(remedy)),
  ]);
  return table("Models served by name only", ["Model", "Why", "How it can be routed to"], rows);
}

/** @param {string} title @param {string | false | null} note @param {Node} content */
const titled = (title, note, content) =>
  h(
    "section",
    { class: "card" },
    h("h3", { class: "eyebrow" }, title),
    note && h("p", { class: "hint" }, note),
    content,
  );

/** @param {string} iso */
const date = (iso) => new Date(iso).toLocaleDateString("en-GB", { dateStyle: "long" });

/** Measurements with an accuracy and a cost: their titles and what they mean.
 * @type {Record<string, [string, string]>} */
const PRICED = {
  verified: [
    "Verified answers",
    "The verifier judges each answer, and another model is asked if that pays.",
  ],
  default: ["One model for each request", "The router chooses a model before any answer."],
  best_single: ["Best single model", "The most accurate model, asked for every query."],
  oracle: [
    "Perfect router",
    "For each query, the cheapest model that answers it correctly. No router can do better.",
  ],
};

/** Other measurements, likewise.
 * @type {Record<string, [string, string]>} */
const OTHERS = {
  mean_auc: [
    "Ranking quality (AUC)",
    "How well the probabilities separate correct from wrong answers, averaged over the models. 0.5 is chance, 1 is perfect.",
  ],
};

/** @param {ArtifactCard} card */
function metrics({ metrics: figures, arms, verified_frontier, verified_policy, default_policy }) {
  const operating = [default_policy, verified_policy]
    .map((policy) => verified_frontier.find((point) => point.policy === policy))
    .find(Boolean);
  /** @type {Record<string, any>} */
  const measures = {
    ...figures,
    ...(operating && {
      verified_accuracy: operating.accuracy,
      verified_cost_usd: operating.cost_usd,
    }),
  };
  const priced = Object.keys(PRICED).filter(
    (name) => measures[`${name}_accuracy`] && measures[`${name}_cost_usd`],
  );
  const rest = Object.keys(measures).filter(
    (name) => !priced.some((each) => name === `${each}_accuracy` || name === `${each}_cost_usd`),
  );
  const single = arms.find(
    (arm) =>
      measures.best_single_accuracy && arm.accuracy?.value === measures.best_single_accuracy.value,
  );
  const best = measures.best_single_cost_usd?.value;
  return facts(
    [
      ...priced.map((name) => {
        const [title, meaning] = PRICED[name];
        const cost = measures[`${name}_cost_usd`];
        const share =
          best && name !== "best_single"
            ? `, ${percent(cost.value / best, 0)} of the best single model's`
            : "";
        return [
          title,
          h(
            "span",
            {},
            `${percent(measures[`${name}_accuracy`].value)} correct`,
            h("small", {}, `± ${percent(measures[`${name}_accuracy`].stderr)}`),
            h("small", {}, `${usdPer1k(cost.value)} per 1,000 requests${share}`),
            h(
              "small",
              {},
              name === "best_single" && single ? `${meaning} It is ${armLabel(single)}.` : meaning,
            ),
          ),
        ];
      }),
      ...rest.map((name) => {
        const [title, meaning] = OTHERS[name] ?? [
          name.replaceAll("_", " ").replace(/^./, (first) => first.toUpperCase()),
          "",
        ];
        return [
          title,
          h(
            "span",
            {},
            measures[name].value.toFixed(3),
            h("small", {}, `± ${measures[name].stderr.toFixed(3)}`),
            h("small", {}, meaning),
          ),
        ];
      }),
    ],
    "facts tiles",
  );
}

/** @param {ArtifactCard} card */
const estimated = ({ arms, estimated_arms: joined }) =>
  joined.length > 0 &&
  h(
    "p",
    { class: "notice" },
    `These figures are estimates: ${joined.map((arm) => modelOf(arms, arm)).join(", ")} joined from a few answers, and the router expects the others.`,
  );

/** @param {ArtifactCard} card */
function frontier(card) {
  if (card.frontier.length === 0)
    return h("p", { class: "notice" }, "The policies of this router have not been measured.");
  const plot = new FrontierPlot(card, { current: card.default_policy, height: 400 });
  const all = curves(card).flatMap(({ points }) => points).length;
  return h(
    "section",
    { class: "card" },
    h("h3", { class: "eyebrow" }, "What each policy costs, and how often it is right"),
    plot.element,
    legend(card, "default of this gateway"),
    estimated(card),
    card.verified_policy &&
      card.verified_frontier.length === 0 &&
      h(
        "p",
        { class: "notice" },
        card.arms.some((arm) => arm.basis === "estimated")
          ? "Verified answers have no figures here, because not all of these models are measured. The other figures are those of the measured ones."
          : "Verified answers have no figures here. This router has figures of them only for all of its models at the prices that it was trained with.",
      ),
    h("details", {}, h("summary", {}, `All ${all} measured policies`), policies(card)),
  );
}

/** @param {ArtifactCard} card */
function policies(card) {
  const measured = curves(card).flatMap(({ points }) => points);
  const rows = measured
    .sort((a, b) => a.cost_usd.value - b.cost_usd.value)
    .map((point) => [
      policyLabel(point.policy),
      `${percent(point.accuracy.value)} ${within(point.accuracy_interval, (value) => percent(value))}`,
      point.versus_best ? `${points(point.versus_best.difference)} points` : "",
      `${usdPer1k(point.cost_usd.value)} ${within(point.cost_usd_interval, usdPer1k)}`,
      point.versus_best?.cost_share ? percent(point.versus_best.cost_share) : "",
    ]);
  return table(
    "Measured policies by rising cost, with 95% intervals",
    [
      "Policy",
      "Accuracy",
      "Against the best single model",
      "Per 1,000 requests",
      "Share of its cost",
    ],
    rows,
  );
}

/** @param {ArtifactCard} card */
function policyNames(card) {
  const measured = curves(card).flatMap(({ points }) => points);
  const standard = readPolicy(card.default_policy).rule;
  const rows = Object.entries(card.policies).map(([name, own]) => {
    const rule = name === "default" ? standard : own;
    const point = measured.find(({ policy }) => policy === rule);
    return [
      h(
        "span",
        {},
        h("code", {}, name === "default" ? card.model_name : `${card.model_name}:${name}`),
        h("small", { class: "meaning" }, ...meaning(card, rule)),
      ),
      point ? percent(point.accuracy.value) : "",
      point ? usdPer1k(point.cost_usd.value) : "",
    ];
  });
  const { name } = readPolicy(card.default_policy);
  const text = name === "default" ? standard : policyText(card.default_policy);
  return h(
    "div",
    {},
    h(
      "p",
      { class: "hint" },
      `A request chooses a policy by its model name. The default of this gateway is ${text}.`,
    ),
    table("Named policies", ["Model name", "Accuracy", "Per 1,000 requests"], rows),
  );
}

/** @param {ArtifactCard} card @param {string} policy such as `drift=0.05`
 * @returns {(string | Node)[]} its rule in words, and as it is written */
function meaning(card, policy) {
  const control = controlOf(card, policy);
  if (!control) return [policy];
  const value = policyValue(control, parsePolicy(policy).value);
  const words = control.explanation.replace("{value}", value);
  return [`${words[0].toUpperCase()}${words.slice(1)} `, h("code", {}, `(${policy})`)];
}

/** @param {ArtifactCard} card */
function arms(card) {
  const isMeasured = card.arms.some((arm) => arm.accuracy);
  const rows = card.arms.map((arm) => [
    armLabel(arm),
    ...(isMeasured
      ? [arm.accuracy ? `${percent(arm.accuracy.value)} ± ${percent(arm.accuracy.stderr)}` : ""]
      : []),
    usdPer1k(arm.cost_usd),
    count(Math.round(arm.profile.input_tokens)),
    count(Math.round(arm.profile.output_tokens)),
    arm.profile.seconds ? `${arm.profile.seconds.toFixed(1)} s` : "",
    arm.basis === "estimated" ? "none: estimated" : count(arm.profile.n),
  ]);
  return table(
    "Models by rising cost",
    [
      "Model",
      ...(isMeasured ? ["Accuracy alone"] : []),
      "Per 1,000 requests",
      "Tokens in",
      "Tokens out",
      "Time",
      "Requests measured",
    ],
    rows,
  );
}

/** What the calibration does, by its method.
 * @type {Record<string, string>} */
const CALIBRATIONS = {
  identity: "Not needed: the network's probabilities are used as they are.",
  temperature:
    "Temperature scaling: one number per model makes the probabilities more or less extreme.",
  platt: "Platt scaling: a logistic curve for each model maps its score to a probability.",
};

/** @param {ArtifactCard} card */
function model(card) {
  const { encoder } = card;
  return facts(
    [
      [
        "Reads",
        `Up to ${card.budget_tokens} tokens of a request: its size, the latest user turn, the tools (up to ${card.tool_budget_tokens} tokens), then earlier turns`,
      ],
      [
        "Text encoder",
        `${encoder.name.replace(/^package:|\/model$/g, "")}, ${(encoder.parameters / 1e6).toFixed(1)} million parameters, ${encoder.layers} ${encoder.layers === 1 ? "layer" : "layers"}`,
      ],
      [
        "Structural features",
        `${card.features} numbers that are computed from the request, such as the number of tools and parameters`,
      ],
      ["Calibration", CALIBRATIONS[card.calibration] ?? card.calibration],
      ["Runs on", execution(card)],
    ],
    "facts list",
  );
}

/** Providers of ONNX Runtime that can run the graph.
 * @type {Record<string, string>} */
const PROVIDERS = { CPUExecutionProvider: "CPU", CUDAExecutionProvider: "GPU" };

/** @param {ArtifactCard} card */
const execution = ({ execution: { graph, provider } }) =>
  h(
    "span",
    {},
    `${PROVIDERS[provider] ?? provider}: `,
    h("code", {}, graph),
    ` by ONNX Runtime's ${provider}`,
  );

/** @param {ArtifactCard} card */
function provenance({ provenance, version, template }) {
  const versions = Object.entries(provenance.versions)
    .map(([name, number]) => `${name} ${number}`)
    .join(", ");
  return h(
    "div",
    {},
    facts([
      ["Trained", date(provenance.created)],
      ["Code", h("span", {}, "commit ", h("code", {}, provenance.commit.slice(0, 12)))],
      ["Gateway", `Switchcraft ${version}`],
    ]),
    h(
      "details",
      {},
      h("summary", {}, "Everything needed to train it again"),
      facts(
        [
          ["Commit", h("code", {}, provenance.commit)],
          ["SHA-256 of the training data", h("code", {}, provenance.data_sha256)],
          ["Random seed", provenance.seed],
          ["Template of the encoder's input", h("code", {}, template)],
          ["Library versions", versions || null],
        ],
        "facts list",
      ),
      h("pre", { tabindex: 0, "aria-label": "Training configuration" }, provenance.config),
    ),
  );
}
