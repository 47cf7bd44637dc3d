/** The candidates of a verified answer as a table: which arms were asked, what they answered, what
 * was decided; and words for each of them. */

import { h } from "./dom.js";
import { armLabel, duration, modelOf, percent, usd } from "./format.js";

/** @import { CandidateView } from "../types" */
/** @import { Child } from "./dom.js" */

/** Reasons why an answer was not verified.
 * @type {Record<string, string>} */
const UNVERIFIED = {
  no_tools: "The request offers no tools; only tool calls are verified.",
  several_choices: "The request asks for more than one choice (n).",
  stored:
    "The provider would store the response, and rejected answers with it. Send store: false to have it verified.",
  background: "The request starts a background job.",
  server_tools: "The request offers tools that the provider runs itself, such as web search.",
  attachments: "The request has images, audio or files, which the verifier cannot read.",
  continued: "The request continues a stored response, whose turns the verifier cannot read.",
  unread: "A part of the request could not be read.",
  far_off:
    "The request is unlike all that the verifier was measured with: it has no words, another script, or more tools.",
  router_failed: "The router or its verifier failed.",
  overloaded: "The gateway was too busy to decide in time.",
  candidates_failed:
    "Every model that was asked failed, so the next model answered without verification.",
  ungrounded:
    "The answer calls a risky tool with a value that nobody said, and no other model confirmed it.",
  text: "The router expected text instead of a tool call, so the text was delivered at once.",
};

/** Kinds of failures of models.
 * @type {Record<string, string>} */
export const FAILURES = {
  unreachable: "not reachable",
  broken: "the connection broke",
  status: "error status",
  error_body: "error in the answer",
  malformed: "unreadable answer",
  unusable: "answer that nobody can use",
  quota: "no credit left",
  too_long: "request too long",
  unfit: "cannot serve this request",
  busy: "all connections in use",
  cooling_down: "not tried, because its circuit is open",
  cancelled: "cancelled, because it took too long",
};

/** @param {string} code @returns {string} why an answer was not verified, as a sentence */
export const whyUnverified = (code) => UNVERIFIED[code] ?? code.replaceAll("_", " ");

/** @param {CandidateView[]} candidates at least one */
export const candidateTable = (candidates) =>
  h(
    "table",
    {},
    h("caption", { class: "spoken" }, "Candidate answers in the order in which they were asked"),
    h("thead", {}, h("tr", {}, ...NAMES.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...candidates.map((candidate) => row(candidate, candidates))),
  );

const NAMES = ["Model", "Answer", "Probability correct", "Decision"];

/** @param {CandidateView} candidate @param {CandidateView[]} all */
function row(candidate, all) {
  const { arm, model } = candidate;
  const cell = (/** @type {number} */ column, /** @type {Child[]} */ ...content) =>
    h("td", { "data-name": NAMES[column] }, h("div", {}, ...content));
  return h(
    "tr",
    { class: candidate.is_accepted ? "is-accepted" : "", "data-arm": arm },
    h(
      "th",
      { scope: "row" },
      model,
      model !== arm && h("small", {}, ` (${arm})`),
      h("small", { class: "spent" }, spentOn(candidate)),
    ),
    cell(1, ...answerOf(candidate, all)),
    cell(2, estimate(candidate)),
    cell(3, decision(candidate, all)),
  );
}

/** @param {CandidateView} candidate @returns {string} what its answer cost, and how long it took */
export function spentOn({ cost_usd, failure, seconds }) {
  const cost = cost_usd == null ? failure == null && "cost unknown" : usd(cost_usd);
  return [cost, duration(seconds)].filter(Boolean).join(", ");
}

/** What a candidate answered.
 * @param {CandidateView} candidate @param {CandidateView[]} all @returns {Child[]} */
export function answerOf({ failure, written, text, calls, same_as, ungrounded }, all) {
  if (failure != null)
    return [
      h(
        "span",
        { class: "failure" },
        `No answer: ${FAILURES[failure] ?? failure.replaceAll("_", " ")}`,
      ),
    ];
  const shown = written ?? [];
  const number = calls ?? 0;
  return [
    ...shown.map((call) => h("code", {}, call)),
    number > shown.length &&
      h(
        "span",
        {},
        `${shown.length > 0 ? "and " : ""}${counted(number - shown.length, shown.length > 0 ? "more call" : "call")}`,
      ),
    calls == null && "An answer that could not be read",
    calls === 0 && (text ? h("span", {}, `No call: “${text}”`) : "No call"),
    (ungrounded ?? []).length > 0 &&
      h("small", { class: "failure" }, `Nobody said the value of ${(ungrounded ?? []).join(", ")}`),
    same_as != null &&
      h(
        "small",
        { class: "same" },
        `${number === 1 ? "the same call" : number === 0 ? "no call" : "the same calls"} as ${modelOf(all, same_as)}`,
      ),
  ];
}

/** @param {CandidateView} candidate */
function estimate({ p_correct: last, first_p_correct: first }) {
  if (last == null) return "none";
  if (first == null || percent(first) === percent(last)) return percent(last);
  return h(
    "span",
    {},
    `${percent(first)}, `,
    h("span", { class: "later" }, `then ${percent(last)}`),
  );
}

/** @param {CandidateView} candidate @param {CandidateView[]} all */
function decision(candidate, all) {
  const next = all
    .filter(({ step }) => step === candidate.step + 1)
    .map(armLabel)
    .join(" and ");
  const accepted = h("b", {}, "Accepted");
  if (candidate.is_accepted)
    return next ? h("span", {}, `Not enough; asked ${next}. `, accepted, " in the end") : accepted;
  if (next) return candidate.failure == null ? `Not enough; asked ${next}` : `Asked ${next}`;
  return "Not used";
}

/** Whether the answers agree is known only for requests of this page.
 * @param {CandidateView[]} candidates */
export function summary(candidates) {
  const complete = candidates.filter(({ failure }) => failure == null);
  const failed = candidates.length - complete.length;
  const asked = `${counted(candidates.length, "model")} asked${failed > 0 ? `, ${failed} without an answer` : ""}`;
  if (complete.length < 2 || !complete.some(isCompared)) return `${asked}.`;
  const groups = new Set(complete.map(({ arm, same_as }) => same_as ?? arm)).size;
  if (groups === 1) return `${asked}. The calls agree.`;
  return groups === complete.length
    ? `${asked}. The calls differ.`
    : `${asked}. Some of the calls agree.`;
}

/** @param {CandidateView} candidate */
const isCompared = ({ written, text, same_as }) =>
  written !== undefined || text !== undefined || same_as !== undefined;

/** @param {number} number @param {string} noun */
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
