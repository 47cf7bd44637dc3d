/** The playground: routes a request, and shows the decision with everything that led to it. */

import * as api from "./api.js";
import { showAnswer } from "./answer.js";
import { arms } from "./arms.js";
import { byId, h, showError } from "./dom.js";
import { bodyOf, detectApi, EXAMPLES } from "./examples.js";
import { packed } from "./packed.js";
import { PolicySlider, requested, verifiedChoice } from "./slider.js";
import { verdict } from "./verdict.js";

/** @import { ArtifactCard, Explained } from "../types" */
/** @import { Api } from "./api.js" */
/** @import { Selection } from "./slider.js" */

/** @type {Record<Api, string>} */
const APIS = { chat: "Chat Completions", responses: "Responses", messages: "Anthropic Messages" };

const body = /** @type {HTMLTextAreaElement} */ (byId("body"));

/** Index of the example in the editor; null once it is edited. @type {number | null} */
let example = null;

/** The policy at which the slider stands; empty before the first decision. */
let policy = "";

/** Whether the slider was moved, so that the policy holds for other requests too. */
let isPolicyKept = false;

/** The request that is shown: its body, and the model that it names. */
let shown = { body: "", model: "" };

/** Number of the latest request; answers to earlier ones are dropped. */
let latest = 0;

export function startPlayground() {
  byId("apis").append(...Object.entries(APIS).map(apiOption));
  byId("examples").replaceChildren(...EXAMPLES.map(chip));
  byId("request-form").addEventListener("submit", (event) => {
    event.preventDefault();
    routeAndShow();
  });
  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) routeAndShow();
  });
  body.addEventListener("input", () => {
    press(null);
    selectApi(detectApi(body.value, selectedApi()));
  });
  byId("ask").addEventListener("click", ask);
  choose(0);
}

/** @param {string[]} option */
function apiOption([name, title]) {
  const change = () => (example === null ? route() : choose(example));
  return h(
    "label",
    {},
    h("input", {
      type: "radio",
      name: "api",
      value: name,
      checked: name === "chat",
      onchange: change,
    }),
    h("span", {}, title),
  );
}

const apiInputs = () =>
  /** @type {HTMLInputElement[]} */ ([...byId("apis").querySelectorAll("input")]);
const selectedApi = () => /** @type {Api} */ (apiInputs().find((input) => input.checked)?.value);

/** @param {Api} name */
function selectApi(name) {
  for (const input of apiInputs()) input.checked = input.value === name;
}

/** @param {{name: string}} example @param {number} index */
function chip({ name }, index) {
  return h(
    "button",
    { type: "button", class: "chip", "aria-pressed": "false", onclick: () => choose(index) },
    name,
  );
}

/** @param {number} index */
function choose(index) {
  body.value = JSON.stringify(bodyOf(EXAMPLES[index], selectedApi()), null, 2);
  press(index);
  route();
}

/** @param {number | null} index of the example in the editor, if any */
function press(index) {
  example = index;
  for (const [at, button] of [...byId("examples").children].entries())
    button.setAttribute("aria-pressed", String(at === index));
  byId("example-note").textContent = index === null ? "" : EXAMPLES[index].note;
}

async function routeAndShow() {
  await route();
  byId("results").scrollIntoView({ block: "nearest" });
}

async function route() {
  const number = (latest += 1);
  const sent = body.value;
  try {
    const [card, explained] = await Promise.all([api.artifact(), api.explain(selectedApi(), sent)]);
    if (number === latest) show(card, explained, sent);
  } catch (error) {
    if (number === latest) fail(error);
  }
}

async function ask() {
  if (body.value !== shown.body) await route();
  if (body.value === shown.body) await showAnswer(selectedApi(), body.value, policy);
}

/** @param {unknown} error */
function fail(error) {
  showError("explain-error", error);
  byId("results").hidden = true;
  shown = { body: "", model: "" };
}

/** @param {ArtifactCard} card @param {Explained} explained @param {string} sent */
function show(card, explained, sent) {
  const model = String(JSON.parse(sent).model);
  // A request that names another model may ask for another policy.
  isPolicyKept &&= model === shown.model;
  shown = { body: sent, model };
  showError("explain-error");
  byId("results").hidden = false;
  byId("answer-card").hidden = true;
  byId("packed").replaceChildren(...packed(explained));
  const redraw = (
    /** @type {Selection} */ choice,
    /** @type {string} */ explanation,
    /** @type {string} */ sent,
  ) => {
    policy = sent;
    byId("verdict-title").textContent =
      choice.reason === "verified" ? "Model that is asked first" : "Chosen model";
    byId("verdict").replaceChildren(...verdict(card, explained, choice, explanation, sent));
    byId("arms").replaceChildren(arms(explained, choice));
  };
  const slider = new PolicySlider(
    byId("policy"),
    card,
    explained,
    isPolicyKept ? policy : requested(explained),
    (choice, explanation, sent) => {
      isPolicyKept = true;
      redraw(choice, explanation, sent);
    },
  );
  const step = slider.step;
  if (isPolicyKept && step) redraw(step.choice, step.explanation, step.point.policy);
  else if (explained.verification?.requested)
    redraw(verifiedChoice(explained), explained.verification.explanation, requested(explained));
  else redraw(explained.chosen, explained.explanation, requested(explained));
}
