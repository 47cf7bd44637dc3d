/** Sends the request to a model, and shows the answer while it arrives. */

import { ask, decision } from "./api.js";
import { byId, errorNotice, facts, h, messageOf, present } from "./dom.js";
import { percent, usd } from "./format.js";
import { steps } from "./steps.js";

/** @import { Api } from "./api.js" */

const STEPS = "steps";
const TRIES = 10;
const PAUSE_MS = 200;

/** @param {Api} api @param {string} body @param {string} policy */
export async function showAnswer(api, body, policy) {
  const place = byId("answer");
  const card = byId("answer-card");
  card.hidden = false;
  place.replaceChildren(h("p", { class: "hint", role: "status" }, "Waiting for the answer …"));
  card.scrollIntoView({ block: "start" });
  try {
    const response = await ask(api, body, policy);
    const headers = decisionHeaders(response.headers);
    const raw = h("pre", { tabindex: 0, "aria-label": "Response body" });
    const isJson = response.headers.get("content-type")?.startsWith("application/json");
    const verification = h("div", { id: "verification" });
    const content = h("div", { class: "content" });
    place.replaceChildren(
      ...present([
        response.headers.has("x-sandbox") &&
          h(
            "p",
            { class: "notice" },
            "This answer comes from a sandbox, not from the model. Configure models to get their answers.",
          ),
        content,
        headers.has("why") && h("p", { class: "why" }, headers.get("why")),
        described(headers),
        verification,
        h(
          "details",
          { open: !isJson },
          h("summary", {}, isJson ? "Response body" : "Streamed events"),
          raw,
        ),
      ]),
    );
    verification.replaceChildren(...(known(headers) ?? []));
    if (isJson) {
      const answer = await response.json();
      content.replaceChildren(...contents(answer));
      raw.textContent = JSON.stringify(answer, null, 2);
    } else await stream(response, raw);
    if (!known(headers))
      verification.replaceChildren(...(await recorded(headers.get("decision-id") ?? "")));
    card.scrollIntoView({ block: "start" });
  } catch (error) {
    place.replaceChildren(errorNotice(error));
  }
}

/** @param {Map<string, string>} headers */
function described(headers) {
  const [candidates, probability, cost, attempts] = [
    "candidates",
    "p-correct",
    "cost-usd",
    "attempts",
  ].map((name) => headers.get(name));
  return facts([
    ["Answered by", headers.get("model")],
    ["Policy", headers.get("policy")],
    ["Cost of this answer", cost && usd(Number(cost))],
    ["Models asked", candidates],
    ["Verifier's estimate", probability && percent(Number(probability))],
    ["Tries", attempts && attempts !== "1" ? attempts : null],
    ["Decision", h("code", {}, headers.get("decision-id"))],
  ]);
}

/** The texts and tool calls of an answer of any of the three APIs.
 * @param {any} answer @returns {Node[]} */
function contents(answer) {
  const messages = [
    ...(answer.choices ?? []).map((/** @type {any} */ choice) => choice.message),
    ...(answer.output ?? []),
    ...(answer.content ? [answer] : []),
  ];
  const parts = messages.flatMap((message) =>
    typeof message?.content === "string" ? [{ text: message.content }] : (message?.content ?? []),
  );
  const calls = [
    ...messages
      .filter((message) => message?.type === "function_call")
      .map(({ name, arguments: given }) => [name, given]),
    ...messages
      .flatMap((message) => message?.tool_calls ?? [])
      .map((/** @type {any} */ call) => [call.function.name, call.function.arguments]),
    ...parts
      .filter((/** @type {any} */ part) => part.type === "tool_use")
      .map((/** @type {any} */ part) => [part.name, JSON.stringify(part.input)]),
  ];
  const texts = parts.map((/** @type {any} */ part) => part.text).filter(Boolean);
  return present([
    ...texts.map((text) => h("p", { class: "said" }, text)),
    calls.length > 0 &&
      h(
        "p",
        { class: "hint" },
        calls.length === 1 ? "The model calls a tool:" : `The model calls ${calls.length} tools:`,
      ),
    calls.length > 0 &&
      h(
        "ul",
        { class: "calls" },
        ...calls.map(([name, given]) => h("li", {}, h("code", {}, `${name}(${given})`))),
      ),
  ]);
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
 * @param {Map<string, string>} headers @returns {Node[] | undefined} */
function known(headers) {
  const hasCandidates = ["verified", "text", undefined].includes(headers.get("reason"));
  if (hasCandidates && !headers.has(STEPS)) return undefined;
  return steps(JSON.parse(headers.get(STEPS) ?? "[]"), headers.get("unverified") ?? null);
}

/** The steps without their calls. A stream may begin before its answer is chosen or complete, so
 * its headers do not have the steps.
 * @param {string} id @returns {Promise<Node[]>} */
async function recorded(id) {
  for (let tries = 1; ; tries += 1) {
    try {
      const { candidates, unverified } = await decision(id);
      return steps(candidates ?? [], unverified);
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

/** @param {Response} response @param {HTMLElement} place */
async function stream(response, place) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    place.append(decoder.decode(value, { stream: true }));
  }
}
