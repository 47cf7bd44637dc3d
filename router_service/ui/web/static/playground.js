/** The playground: routes a request, and shows the decision with everything that led to it. */

import * as api from "./api.js";
import { showAnswer } from "./answer.js";
import { arms } from "./arms.js";
import { byId, h, showError } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { packed } from "./packed.js";
import { PolicySlider, requested, verifiedChoice } from "./slider.js";
import { verdict } from "./verdict.js";

const body = /** @type {HTMLTextAreaElement} */ (byId("body"));

/** The policy at which the slider stands; empty before the first decision. */
let policy = "";

/** Number of the latest request; answers to earlier ones are dropped. */
let latest = 0;

export function startPlayground() {
  byId("examples").replaceChildren(...EXAMPLES.map(chip));
  byId("request-form").addEventListener("submit", (event) => {
    event.preventDefault();
    route();
  });
  body.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) route();
  });
  body.addEventListener("input", () => press(null));
  byId("ask").addEventListener("click", () => showAnswer(kindOf(body.value), body.value, policy));
  choose(0);
}

/** @param {{name: string}} example @param {number} index */
function chip({ name }, index) {
  return h("button", { type: "button", class: "chip", "aria-pressed": "false", onclick: () => choose(index) }, name);
}

/** @param {number} index */
function choose(index) {
  body.value = JSON.stringify(EXAMPLES[index].body, null, 2);
  press(index);
  route();
}

/** @param {number | null} index of the example in the editor, if any */
function press(index) {
  for (const [at, button] of [...byId("examples").children].entries()) button.setAttribute("aria-pressed", String(at === index));
  byId("example-note").textContent = index === null ? "" : EXAMPLES[index].note;
}

async function route() {
  const number = (latest += 1);
  try {
    const [card, explained] = await Promise.all([api.artifact(), api.explain(kindOf(body.value), body.value)]);
    if (number === latest) show(card, explained);
  } catch (error) {
    if (number === latest) fail(error);
  }
}

/** @param {unknown} error */
function fail(error) {
  showError("explain-error", error);
  byId("results").hidden = true;
}

/** @param {api.Card} card @param {api.Explained} explained */
function show(card, explained) {
  showError("explain-error");
  byId("results").hidden = false;
  byId("answer-card").hidden = true;
  byId("packed").replaceChildren(...packed(explained));
  const redraw = (/** @type {api.Choice} */ choice, /** @type {string} */ sent) => {
    policy = sent;
    byId("verdict-title").textContent = choice.reason === "verified" ? "Arm (model) that is asked first" : "Chosen arm (model)";
    byId("verdict").replaceChildren(...verdict(explained, choice, sent));
    byId("arms").replaceChildren(arms(explained, choice));
  };
  new PolicySlider(byId("policy"), card, explained, redraw);
  redraw(explained.verification?.requested ? verifiedChoice(explained) : explained.chosen, requested(explained));
}

/** The API that a body belongs to; the gateway refuses a body that is not JSON.
 * @param {string} body @returns {"chat" | "responses"} */
function kindOf(body) {
  try {
    const parsed = JSON.parse(body);
    return parsed?.input !== undefined && parsed.messages === undefined ? "responses" : "chat";
  } catch {
    return "chat";
  }
}
