/** The playground: routes a request, and shows the decision with everything that led to it. */

import * as api from "./api.js";
import { AnswerCard } from "./answer.js";
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

export class Playground {
  /** Index of the example in the editor; null once it is edited.
   * @type {number | null} */
  example = null;
  /** The policy at which the slider stands; empty before the first decision. */
  policy = "";
  /** Whether the slider was moved, so that the policy holds for other requests too. */
  isPolicyKept = false;
  /** The request that is shown: its body, the model that it names, and what was decided.
   * @type {{body: string, model: string, explained: Explained | null}} */
  shown = { body: "", model: "", explained: null };
  /** Number of the latest request; answers to earlier ones are dropped. */
  latest = 0;

  answer = new AnswerCard();
  body = byId("body", HTMLTextAreaElement);
  streams = byId("stream", HTMLInputElement);
  apis = Object.keys(APIS).map((name) =>
    h("input", {
      type: "radio",
      name: "api",
      value: name,
      checked: name === "chat",
      onchange: () => (this.example === null ? this.route() : this.choose(this.example)),
    }),
  );
  chips = EXAMPLES.map(({ name }, index) =>
    h(
      "button",
      {
        type: "button",
        class: "chip",
        "aria-pressed": "false",
        onclick: () => this.choose(index),
      },
      name,
    ),
  );

  /** Shows the view with the first example. */
  start() {
    byId("apis").append(
      ...this.apis.map((input) =>
        h("label", {}, input, h("span", {}, APIS[/** @type {Api} */ (input.value)])),
      ),
    );
    byId("examples").replaceChildren(...this.chips);
    byId("request-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.routeAndShow();
    });
    this.body.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.routeAndShow();
    });
    this.body.addEventListener("input", () => {
      this.press(null);
      this.api = detectApi(this.body.value, this.api);
      this.streams.checked = parsed(this.body.value)?.stream === true;
    });
    this.streams.addEventListener("change", () => this.setStream());
    byId("ask").addEventListener("click", () => this.ask());
    this.choose(0);
  }

  /** The selected API. */
  get api() {
    return /** @type {Api} */ (this.apis.find((input) => input.checked)?.value);
  }

  /** @param {Api} name */
  set api(name) {
    for (const input of this.apis) input.checked = input.value === name;
  }

  /** @param {number} index */
  choose(index) {
    this.write(bodyOf(EXAMPLES[index], this.api));
    this.press(index);
    this.route();
  }

  /** Writes a request into the editor, which asks for a stream if that is switched on.
   * @param {object} body */
  write(body) {
    const asked = this.streams.checked ? { ...body, stream: true } : body;
    this.body.value = JSON.stringify(asked, null, 2);
  }

  /** Lets the request in the editor ask for a stream, or not. */
  setStream() {
    const body = parsed(this.body.value);
    if (body === null) {
      this.streams.checked = false; // the gateway reports what is wrong with the body
      return;
    }
    const { stream: _, ...rest } = body;
    this.write(rest);
  }

  /** @param {number | null} index of the example in the editor, if any */
  press(index) {
    this.example = index;
    for (const [at, chip] of this.chips.entries())
      chip.setAttribute("aria-pressed", String(at === index));
    byId("example-note").textContent = index === null ? "" : EXAMPLES[index].note;
  }

  async routeAndShow() {
    await this.route();
    byId("results").scrollIntoView({ block: "nearest" });
  }

  async route() {
    this.latest += 1;
    const number = this.latest;
    const sent = this.body.value;
    try {
      const [card, explained] = await Promise.all([api.artifact(), api.explain(this.api, sent)]);
      if (number === this.latest) this.show(card, explained, sent);
    } catch (error) {
      if (number === this.latest) this.fail(error);
    }
  }

  async ask() {
    if (this.body.value !== this.shown.body) await this.route();
    const { body, explained } = this.shown;
    if (this.body.value === body && explained !== null)
      await this.answer.send({ api: this.api, body, policy: this.policy, explained });
  }

  /** @param {unknown} error */
  fail(error) {
    showError("explain-error", error);
    byId("results").hidden = true;
    this.answer.hide();
    this.shown = { body: "", model: "", explained: null };
  }

  /** @param {ArtifactCard} card @param {Explained} explained @param {string} sent the body */
  show(card, explained, sent) {
    const model = String(JSON.parse(sent).model);
    // A request that names another model may ask for another policy.
    this.isPolicyKept &&= model === this.shown.model;
    this.shown = { body: sent, model, explained };
    showError("explain-error");
    byId("results").hidden = false;
    this.answer.hide();
    byId("packed").replaceChildren(...packed(explained));
    const select = (
      /** @type {Selection} */ choice,
      /** @type {string} */ explanation,
      /** @type {string} */ policy,
    ) => {
      this.policy = policy;
      byId("verdict-title").textContent = choice.isFirstStep
        ? "Model that is asked first"
        : "Chosen model";
      byId("verdict").replaceChildren(...verdict(card, explained, choice, explanation, policy));
      byId("arms").replaceChildren(arms(explained, choice));
    };
    const { step } = new PolicySlider(
      byId("policy"),
      card,
      explained,
      this.isPolicyKept ? this.policy : requested(explained),
      (choice, explanation, policy) => {
        this.isPolicyKept = true;
        select(choice, explanation, policy);
      },
    );
    if (this.isPolicyKept && step) select(step.choice, step.explanation, step.point.policy);
    else if (explained.verification?.requested)
      select(verifiedChoice(explained), explained.verification.explanation, requested(explained));
    else select(explained.chosen, explained.explanation, requested(explained));
  }
}

/** @param {string} body @returns {any} the decoded object; null if the body is not an object */
function parsed(body) {
  try {
    const value = JSON.parse(body);
    return typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}
