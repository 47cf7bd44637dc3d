/** Sends the request to a model, and shows the answer while it arrives. */

import { ask, decision } from "./api.js";
import { byId, facts, h } from "./dom.js";
import { steps } from "./steps.js";

const STEPS = "steps";
const TRIES = 10;
const PAUSE_MS = 200;

/** @param {"chat" | "responses"} kind @param {string} body @param {string} policy */
export async function showAnswer(kind, body, policy) {
  const place = byId("answer");
  byId("answer-card").hidden = false;
  byId("answer-card").scrollIntoView({ block: "nearest" });
  place.replaceChildren(h("p", { class: "hint", role: "status" }, "Waiting for the answer …"));
  try {
    const response = await ask(kind, body, policy);
    const headers = decisionHeaders(response.headers);
    const text = h("pre", { tabindex: 0, "aria-label": "Answer" });
    const verification = h("div", { id: "verification" });
    place.replaceChildren(facts([...headers].filter(([name]) => name !== STEPS)), verification, text);
    verification.replaceChildren(...(known(headers) ?? []));
    await stream(response, text);
    if (!known(headers)) verification.replaceChildren(...await recorded(headers.get("decision-id") ?? ""));
  } catch (error) {
    place.replaceChildren(h("p", { class: "notice error", role: "alert" }, error instanceof Error ? error.message : String(error)));
  }
}

/** The texts and tool calls of an answer of either API.
 * @param {any} answer @returns {HTMLElement[]} */
function content(answer) {
  const messages = [...(answer.choices ?? []).map((/** @type {any} */ choice) => choice.message), ...(answer.output ?? [])];
  const texts = messages.flatMap((message) => (typeof message?.content === "string" ? [message.content] : (message?.content ?? []).map((/** @type {any} */ part) => part.text)));
  const calls = messages.flatMap((message) => (message?.type === "function_call" ? [message] : (message?.tool_calls ?? []).map((/** @type {any} */ call) => call.function)));
  return [...texts.filter(Boolean).map((text) => h("span", {}, text)), ...calls.filter(Boolean).map(({ name, arguments: given }) => h("code", {}, `${name}(${given})`))];
}

/** @param {Headers} headers @returns {Map<string, string>} the gateway's decision headers, without their prefix */
function decisionHeaders(headers) {
  const prefix = "x-switchcraft-";
  return new Map([...headers].filter(([name]) => name.startsWith(prefix)).map(([name, value]) => [name.slice(prefix.length), value]));
}

/** The steps of the answer's verification; undefined if they are not in the headers.
 * @param {Map<string, string>} headers @returns {Node[] | undefined} */
function known(headers) {
  const isVerified = headers.get("policy")?.startsWith("verified=");
  if (isVerified && !headers.has(STEPS)) return undefined;
  return steps(JSON.parse(headers.get(STEPS) ?? "[]"), headers.get("unverified") ?? null);
}

/** The steps without their calls. A stream may begin before its answer is chosen, so its headers do not have the steps.
 * @param {string} id @returns {Promise<Node[]>} */
async function recorded(id) {
  for (let tries = 1; ; tries += 1) {
    try {
      const { candidates, unverified } = await decision(id);
      return steps(candidates ?? [], unverified);
    } catch (error) {
      // The decision is recorded shortly after the answer's end.
      if (tries === TRIES) return [h("p", { class: "hint" }, `The steps of the verification are not known: ${error instanceof Error ? error.message : error}`)];
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }
}

/** @param {Response} response @param {HTMLElement} place */
async function stream(response, place) {
  if (response.headers.get("content-type")?.startsWith("application/json")) {
    const answer = await response.json();
    place.before(h("ul", { class: "calls" }, ...content(answer).map((line) => h("li", {}, line))));
    place.textContent = JSON.stringify(answer, null, 2);
    return;
  }
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    place.append(decoder.decode(value, { stream: true }));
  }
}
