/** Sends the request to a model, and shows the answer while it arrives. */

import { AnswerParts, EventStream } from "./answer-parts.js";
import { ask, decision } from "./api.js";
import { byId, errorNotice, facts, h, messageOf, present } from "./dom.js";
import { percent, usd } from "./format.js";
import { policyLabel } from "./policies.js";
import { verification } from "./verification.js";

/** @import { Explained } from "../types" */
/** @import { Api } from "./api.js" */
/** @import { StepFacts } from "./verification.js" */

/** @typedef {{api: Api, body: string, policy: string, explained: Explained}} Sent */

const STEPS = "steps";
const TRIES = 10;
const PAUSE_MS = 200;

export class AnswerCard {
  card = byId("answer-card");
  place = byId("answer");
  stop = byId("stop");
  /** Stops the request that is running.
   * @type {AbortController | null} */
  running = null;

  constructor() {
    this.stop.addEventListener("click", () => this.running?.abort());
  }

  /** Hides the answer, and stops the request for it. */
  hide() {
    this.running?.abort();
    this.card.hidden = true;
  }

  /** @param {Sent} sent */
  async send(sent) {
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.stop.hidden = false;
    this.card.hidden = false;
    this.place.replaceChildren(
      h("p", { class: "hint", role: "status" }, "Waiting for the answer …"),
    );
    this.card.scrollIntoView({ block: "start" });
    try {
      await this.show(sent, running.signal);
    } catch (error) {
      if (this.running === running)
        this.place.replaceChildren(running.signal.aborted ? stopped() : errorNotice(error));
    }
    if (this.running !== running) return; // another request was sent meanwhile
    this.running = null;
    if (document.activeElement === this.stop) byId("ask").focus();
    this.stop.hidden = true;
  }

  /** @param {Sent} sent @param {AbortSignal} signal */
  async show({ api, body, policy, explained }, signal) {
    const response = await ask(api, body, policy, signal);
    const headers = decisionHeaders(response.headers);
    const isJson = response.headers.get("content-type")?.startsWith("application/json");
    const raw = h("pre", { tabindex: 0, "aria-label": "Response body" });
    const parts = new AnswerParts();
    const ending = h("div", { class: "ending" });
    const verified = h("div", { id: "verification" });
    this.place.replaceChildren(
      ...present([
        response.headers.has("x-sandbox") &&
          h(
            "p",
            { class: "notice" },
            "This answer comes from a sandbox, not from the model. Configure models to get their answers.",
          ),
        parts.element,
        ending,
        headers.has("why") && h("p", { class: "why" }, headers.get("why")),
        described(headers),
        verified,
        h("details", {}, h("summary", {}, isJson ? "Response body" : "Streamed events"), raw),
      ]),
    );
    /** @type {StepFacts} */
    const request = {
      question: questionOf(body),
      policy: headers.get("policy") ?? policy,
      probabilities: Object.fromEntries(explained.arms.map((arm) => [arm.arm, arm.probability])),
      costs_usd: Object.fromEntries(explained.arms.map((arm) => [arm.arm, arm.cost_usd])),
    };
    verified.replaceChildren(...(known(headers, request) ?? []));
    if (isJson) {
      const answer = await response.json();
      parts.show(answer);
      raw.textContent = JSON.stringify(answer, null, 2);
    } else {
      ending.replaceChildren(h("p", { class: "hint", role: "status" }, "The answer arrives …"));
      ending.replaceChildren(...(await stream(response, new EventStream(api, parts), raw, signal)));
    }
    if (signal.aborted) return;
    if (!known(headers, request))
      verified.replaceChildren(...(await recorded(headers.get("decision-id") ?? "", request)));
    this.card.scrollIntoView({ block: "start" });
  }
}

/** @param {Response} response @param {EventStream} events @param {HTMLElement} raw
 * @param {AbortSignal} signal @returns {Promise<Node[]>} how the answer ended, unless it is complete */
async function stream(response, events, raw, signal) {
  const body = /** @type {ReadableStream<Uint8Array>} */ (response.body);
  const reader = body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const text = decoder.decode(value, { stream: true });
      raw.append(text);
      events.add(text);
    }
  } catch {
    if (signal.aborted) return [stopped()];
    events.fail({ message: "The connection broke before the answer was complete." });
  }
  if (events.error !== null) return [errorNotice(`The answer failed: ${events.error}`)];
  return events.isComplete
    ? [h("p", { class: "spoken", role: "status" }, "The answer is complete.")]
    : [errorNotice("The stream ended before the answer was complete.")];
}

const stopped = () =>
  h(
    "p",
    { class: "notice", role: "status" },
    "Stopped. The gateway cancels the request to the model.",
  );

/** @param {Map<string, string>} headers */
function described(headers) {
  const [policy, candidates, probability, cost, attempts] = [
    "policy",
    "candidates",
    "p-correct",
    "cost-usd",
    "attempts",
  ].map((name) => headers.get(name));
  return facts([
    ["Answered by", headers.get("model")],
    ["Policy", policy && policyLabel(policy)],
    ["Cost of this answer", cost && usd(Number(cost))],
    ["Models asked", candidates],
    ["Verifier's estimate", probability && percent(Number(probability))],
    ["Tries", attempts && attempts !== "1" ? attempts : null],
    ["Decision", h("code", {}, headers.get("decision-id"))],
  ]);
}

/** The user's last text in a request of any of the three APIs.
 * @param {string} body @returns {string | null} */
function questionOf(body) {
  const { messages, input } = JSON.parse(body);
  if (typeof input === "string") return input;
  const turns = /** @type {any[]} */ (messages ?? input ?? []);
  const content = turns.filter((turn) => turn?.role === "user").at(-1)?.content;
  if (!Array.isArray(content)) return content ?? null;
  return content.map((part) => part?.text ?? "").join("\n") || null;
}

/** @param {Headers} headers
 * @returns {Map<string, string>} the gateway's decision headers, without their prefix */
function decisionHeaders(headers) {
  const prefix = "x-switchcraft-";
  return new Map(
    [...headers]
      .filter(([name]) => name.startsWith(prefix))
      .map(([name, value]) => [name.slice(prefix.length), value]),
  );
}

/** The steps of the answer's verification; undefined if they are not in the headers.
 * @param {Map<string, string>} headers @param {StepFacts} request @returns {Node[] | undefined} */
function known(headers, request) {
  const hasCandidates = ["verified", "text", undefined].includes(headers.get("reason"));
  if (hasCandidates && !headers.has(STEPS)) return undefined;
  return verification(JSON.parse(headers.get(STEPS) ?? "[]"), headers.get("unverified") ?? null, {
    ...request,
    why: headers.get("why"),
  });
}

/** The steps without their calls. A stream may begin before its answer is chosen or complete, so
 * its headers do not have the steps.
 * @param {string} id @param {StepFacts} request @returns {Promise<Node[]>} */
async function recorded(id, request) {
  for (let tries = 1; ; tries += 1) {
    try {
      const { candidates, unverified, explanation } = await decision(id);
      return verification(candidates ?? [], unverified, { ...request, why: explanation });
    } catch (error) {
      // The decision is recorded shortly after the answer's end.
      if (tries === TRIES)
        return [
          h("p", { class: "hint" }, `The candidate answers are not known: ${messageOf(error)}`),
        ];
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }
}
