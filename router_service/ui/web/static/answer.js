/** Sends the request to a model, and shows the answer while it arrives. */

import { ask } from "./api.js";
import { byId, facts, h } from "./dom.js";

/** @param {"chat" | "responses"} kind @param {string} body @param {string} policy */
export async function showAnswer(kind, body, policy) {
  const place = byId("answer");
  byId("answer-card").hidden = false;
  byId("answer-card").scrollIntoView({ block: "nearest" });
  place.replaceChildren(h("p", { class: "hint", role: "status" }, "Waiting for the answer …"));
  try {
    const response = await ask(kind, body, policy);
    const text = h("pre", { tabindex: 0, "aria-label": "Answer" });
    place.replaceChildren(facts(decisionHeaders(response.headers)), text);
    await stream(response, text);
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

/** @param {Headers} headers @returns {[string, string][]} the gateway's decision headers */
function decisionHeaders(headers) {
  const prefix = "x-switchcraft-";
  return [...headers].filter(([name]) => name.startsWith(prefix)).map(([name, value]) => [name.slice(prefix.length), value]);
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
