/** Example requests, one for each kind of input, in each of the three APIs. */

/** @import { Api } from "./api.js" */
/** @typedef {{role: string, content: string}} Message */
/** @typedef {{model: string, messages: Message[], tools: any[]}} ChatBody */
/** @typedef {{name: string, note: string, body: ChatBody}} Example */

/** @param {string} name @param {string} description @param {Record<string, object>} properties
 * @param {string[]} [required] */
function tool(name, description, properties, required = Object.keys(properties)) {
  const parameters = { type: "object", properties, required };
  return { type: "function", function: { name, description, parameters } };
}

const text = { type: "string" };
const city = { type: "string", description: "Name of a city" };
const weather = tool(
  "get_weather",
  "The weather of a city now",
  { city, unit: { enum: ["celsius", "fahrenheit"] } },
  ["city"],
);
const time = tool("get_time", "The local time of a city", { city });
const flights = tool(
  "find_flights",
  "Flights between two cities",
  {
    from: city,
    to: city,
    date: { type: "string", description: "ISO 8601" },
    passengers: { type: "integer" },
  },
  ["from", "to", "date"],
);
const invoice = tool("create_invoice", "Writes an invoice", {
  customer_id: text,
  due: text,
  items: {
    type: "array",
    items: { type: "object", properties: { sku: text, quantity: { type: "integer" } } },
  },
});

/** @param {Message[]} messages @param {object[]} tools */
const chat = (messages, tools) => ({ model: "switchcraft", messages, tools });
const user = (/** @type {string} */ content) => ({ role: "user", content });

const SERVICES = ["calendar", "mail", "drive", "crm", "tickets", "billing", "wiki", "chat"];
const VERBS = ["list", "search", "create", "update", "delete"];
const office = SERVICES.flatMap((service) =>
  VERBS.map((verb) =>
    tool(
      `${service}_${verb}`,
      `${verb} entries of ${service}`,
      { query: text, limit: { type: "integer" } },
      ["query"],
    ),
  ),
);

const LOG =
  "The night shift restarted the ingest workers twice; the queue fell from 41,000 to 12,000 jobs and has stayed there since. ";
const long = [
  { role: "system", content: "You are the on-call assistant of a logistics company. Be brief." },
  ...Array.from({ length: 6 }, (_, turn) => [
    user(`Report ${turn + 1}: ${LOG.repeat(3)}`),
    { role: "assistant", content: `Noted report ${turn + 1}: the queue holds.` },
  ]).flat(),
  user(
    `${LOG.repeat(24)} Given all of that: what is the weather in Rotterdam, where the next ship lands?`,
  ),
];

/** @type {Example[]} */
export const EXAMPLES = [
  {
    name: "Single call",
    note: "One question, and one tool that answers it.",
    body: chat([user("What is the weather in Oslo right now, in celsius?")], [weather, time]),
  },
  {
    name: "Parallel calls",
    note: "Three cities with two questions each: the correct answer has six tool calls.",
    body: chat(
      [
        user(
          "Compare Oslo, Lima and Kyoto for me: the weather and the local time in each of them.",
        ),
      ],
      [weather, time, flights],
    ),
  },
  {
    name: "Many tools",
    note: "Forty tools. Their signatures are longer than the router's token budget for tools, so they are cut.",
    body: chat(
      [user("Find the last invoice that we sent to Acme and attach it to ticket 4711.")],
      office,
    ),
  },
  {
    name: "Long conversation",
    note: "The router keeps the beginning and the end of the last user turn. Earlier turns do not fit.",
    body: chat(long, [weather, flights]),
  },
  {
    name: "No tool fits",
    note: "The correct answer is text, without a tool call.",
    body: chat(
      [user("Write a limerick about a router that could not decide.")],
      [weather, flights],
    ),
  },
  {
    name: "Unreadable part",
    note: "A tool has no name, and a message has an unknown role. The router cannot read everything, so it does not risk a cheaper model.",
    body: chat(
      [
        user("Bill customer C-17 for 3 × A-100, due on Friday."),
        { role: "narrator", content: "(a pause)" },
      ],
      [invoice, { type: "function", function: { description: "its name is missing" } }],
    ),
  },
];

/** Longest answer, which Anthropic's API requires. */
const MAX_TOKENS = 1024;

/** @param {Example} example @param {Api} api
 * @returns {object} the request as a client of this API sends it */
export function bodyOf({ body }, api) {
  const { model, messages, tools } = body;
  switch (api) {
    case "chat":
      return body;
    // Without `store: false`, the provider stores the response, and the answer cannot be verified.
    case "responses":
      return {
        model,
        store: false,
        input: messages,
        tools: tools.map((each) => ({ type: "function", ...each.function })),
      };
    case "messages": {
      const system = messages.find(({ role }) => role === "system")?.content;
      const turns = messages.filter(({ role }) => role !== "system");
      const named = tools.map(({ function: { parameters, ...rest } }) => ({
        ...rest,
        input_schema: parameters,
      }));
      return {
        model,
        max_tokens: MAX_TOKENS,
        ...(system && { system }),
        messages: turns,
        tools: named,
      };
    }
  }
}

/** The API that a body was written for. Where nothing tells, it is the selected one.
 * @param {string} body @param {Api} selected @returns {Api} */
export function detectApi(body, selected) {
  try {
    const { input, messages, system, tools } = JSON.parse(body);
    if (messages === undefined) return input === undefined ? selected : "responses";
    const first = Array.isArray(tools) ? tools[0] : undefined;
    if (system !== undefined || first?.input_schema) return "messages";
    return first?.function ? "chat" : selected;
  } catch {
    return selected; // the gateway reports that the body is not JSON
  }
}
