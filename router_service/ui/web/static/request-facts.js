/** What the list knows of a request whose decision is not there. */

import { causeText, outcomeText } from "./decisions.js";
import { facts, h, present } from "./dom.js";
import { duration, usd } from "./format.js";

/** @import { ListedRequest } from "../types" */

/** @param {ListedRequest} request @param {string | null} missing why there is no decision */
export function requestFacts(request, missing) {
  return present([
    h("p", { class: "explanation" }, summary(request)),
    facts(
      [
        ["Model", request.model],
        request.arm !== request.model && ["Arm", request.arm],
        ["Policy", request.policy],
        ["Status", `${request.status}, ${request.ending.replaceAll("_", " ")}`],
        ["Error", request.error === null ? null : h("code", {}, request.error)],
        ["Time", new Date(request.time * 1000).toLocaleString("en-GB")],
        ["Endpoint", h("code", {}, request.path)],
        ["Key", request.key],
        ["Team", request.team],
        ["Header x-request-id", request.request_id],
        request.attempts > 0 && ["Attempts", request.attempts],
        ["Deployment", request.deployment],
        ["Latency", duration(request.latency_s)],
        ["First byte", request.first_byte_s === null ? null : duration(request.first_byte_s)],
        ["Tokens in", request.prompt_tokens],
        ["Tokens out", request.completion_tokens],
        ["Cost", request.cost_usd === null ? null : usd(request.cost_usd)],
      ].filter((fact) => Array.isArray(fact)),
    ),
    missing !== null && h("p", { class: "notice" }, missing),
  ]);
}

/** @param {ListedRequest} request */
function summary(request) {
  if (request.outcome === "refused")
    return `The gateway refused this request with status ${request.status}: ${causeText(request)}.`;
  const ended = outcomeText(request);
  return `${ended[0].toUpperCase()}${ended.slice(1)}: ${causeText(request)}.`;
}
