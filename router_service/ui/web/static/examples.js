/** Example requests, one for each kind of input. */

/** @param {string} name @param {string} description @param {Record<string, object>} properties @param {string[]} [required] */
function tool(name, description, properties, required = Object.keys(properties)) {
  const parameters = { type: "object", properties, required };
  return { type: "function", function: { name, description, parameters } };
}

const text = { type: "string" };
const city = { type: "string", description: "Name of a city" };
const weather = tool("get_weather", "The weather of a city now", { city, unit: { enum: ["celsius", "fahrenheit"] } }, ["city"]);
const time = tool("get_time", "The local time of a city", { city });
const flights = tool("find_flights", "Flights between two cities", {
  from: city, to: city, date: { type: "string", description: "ISO 8601" }, passengers: { type: "integer" },
}, ["from", "to", "date"]);
const invoice = tool("create_invoice", "Writes an invoice", {
  customer_id: text, due: text,
  items: { type: "array", items: { type: "object", properties: { sku: text, quantity: { type: "integer" } } } },
});

/** @param {object[]} messages @param {object[]} tools */
const chat = (messages, tools) => ({ model: "switchcraft", messages, tools });
const user = (/** @type {string} */ content) => ({ role: "user", content });

const SERVICES = ["calendar", "mail", "drive", "crm", "tickets", "billing", "wiki", "chat"];
const VERBS = ["list", "search", "create", "update", "delete"];
const office = SERVICES.flatMap((service) => VERBS.map((verb) =>
  tool(`${service}_${verb}`, `${verb} entries of ${service}`, { query: text, limit: { type: "integer" } }, ["query"])));

const LOG = "The night shift restarted the ingest workers twice; the queue fell from 41,000 to 12,000 jobs and has stayed there since. ";
const long = [
  { role: "system", content: "You are the on-call assistant of a logistics company. Be brief." },
  ...Array.from({ length: 6 }, (_, turn) => [
    user(`Report ${turn + 1}: ${LOG.repeat(3)}`),
    { role: "assistant", content: `Noted report ${turn + 1}: the queue holds.` },
  ]).flat(),
  user(`${LOG.repeat(24)} Given all of that: what is the weather in Rotterdam, where the next ship lands?`),
];

/** @type {{name: string, note: string, body: object}[]} */
export const EXAMPLES = [
  { name: "Single call", note: "One question, one tool that answers it.",
    body: chat([user("What is the weather in Oslo right now, in celsius?")], [weather, time]) },
  { name: "Parallel calls", note: "Three cities with two questions each: six tool calls in one answer.",
    body: chat([user("Compare Oslo, Lima and Kyoto for me: the weather and the local time in each of them.")], [weather, time, flights]) },
  { name: "Many tools", note: "Forty tools, whose signatures exceed the router's token budget for tools and are cut.",
    body: chat([user("Find the last invoice that we sent to Acme and attach it to ticket 4711.")], office) },
  { name: "Long conversation", note: "The beginning and the end of the last turn are kept; older turns do not fit.",
    body: chat(long, [weather, flights]) },
  { name: "No tool fits", note: "The correct answer calls no tool.",
    body: chat([user("Write a limerick about a router that could not decide.")], [weather, flights]) },
  { name: "Unreadable part", note: "A tool without a name and a message with an unknown role. The router is not confident enough to use a cheaper model.",
    body: chat([user("Bill customer C-17 for 3 × A-100, due on Friday."), { role: "narrator", content: "(a pause)" }],
      [invoice, { type: "function", function: { description: "its name is missing" } }]) },
  { name: "Responses API", note: "The first example as a request to the Responses API.",
    body: { model: "switchcraft", input: "What is the weather in Oslo right now, in celsius?",
      tools: [weather, time].map((each) => ({ type: "function", ...each.function })) } },
];
