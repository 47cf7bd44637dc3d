/** The API: every operation of the gateway's OpenAPI description. */

import { description } from "./api.js";
import { byId, h, inline, showError, table } from "./dom.js";

/** @import { Session } from "../types" */
/** @import { Child } from "./dom.js" */

/** @typedef {any} Document an OpenAPI description */
/** @typedef {any} Operation of an OpenAPI description */
/** @typedef {any} Schema a JSON Schema */

const MAX_DEPTH = 4;

/** @param {Session} session */
export async function startReference({ model_name }) {
  try {
    const document = await description();
    byId("api-body").replaceChildren(...described(document, model_name));
  } catch (error) {
    showError("api-error", error);
  }
}

/** The address of a path, below the prefix that a proxy may add to the page.
 * @param {string} path */
const addressOf = (path) =>
  new URL(path.replace(/^\//, ""), new URL(".", location.href)).href
    .replaceAll("%7B", "{")
    .replaceAll("%7D", "}");

/** A link that saves the description; a link to its address would not send the key.
 * @param {Document} document */
function saved(document) {
  const file = new Blob([JSON.stringify(document)], { type: "application/json" });
  return h("a", { href: URL.createObjectURL(file), download: "openapi.json" }, "openapi.json");
}

/** @param {Document} document @param {string} model that a client names */
function described(document, model) {
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
  );
  return [
    h(
      "div",
      { class: "head" },
      h(
        "div",
        {},
        h("h2", {}, "API"),
        h(
          "p",
          { class: "lead" },
          ...inline(document.info.description),
          " The whole description is in ",
          saved(document),
          ".",
        ),
      ),
    ),
    h(
      "section",
      { class: "card" },
      h("h3", { class: "eyebrow" }, "Connect a client"),
      table(
        "Addresses for clients",
        ["Client", "Base URL", "Model"],
        [
          ["OpenAI and compatible", h("code", {}, addressOf("/v1")), h("code", {}, model)],
          ["Anthropic", h("code", {}, addressOf("/").replace(/\/$/, "")), h("code", {}, model)],
        ],
      ),
    ),
    ...document.tags.map((/** @type {any} */ tag) =>
      h(
        "section",
        { class: "card" },
        h("h3", {}, tag.name),
        h("p", { class: "hint" }, tag.description),
        ...operations
          .filter(({ operation }) => operation.tags?.includes(tag.name))
          .map(({ path, method, operation }) => shown(document, path, method, operation)),
      ),
    ),
  ];
}

/** @param {Document} document @param {string} path @param {string} method
 * @param {Operation} operation */
function shown(document, path, method, operation) {
  const body = operation.requestBody?.content["application/json"];
  const [first, ...rest] = (operation.description ?? "").split("\n\n");
  const parameters = operation.parameters ?? [];
  const success = operation.responses["200"] ?? {};
  const headers = Object.entries(success.headers ?? {});
  const answer = success.content?.["application/json"]?.schema;
  const fields = answer ? fieldsOf(document, answer) : [];
  return h(
    "details",
    { class: "operation" },
    h(
      "summary",
      {},
      h("b", { class: `method ${method}` }, method.toUpperCase()),
      h("code", {}, path),
      h("span", {}, operation.summary),
    ),
    ...[first, ...rest]
      .filter(Boolean)
      .map((text) => h("p", {}, ...inline(text.replaceAll("\n", " ")))),
    ...section(
      "Parameters",
      ["Name", "In", "Meaning"],
      parameters.map((/** @type {any} */ each) => [
        named(each.name, each.required),
        each.in,
        h("span", {}, ...inline(each.description ?? typeOf(each.schema))),
      ]),
    ),
    ...section(
      "Request body",
      ["Field", "Type", "Meaning"],
      body ? fieldsOf(document, body.schema) : [],
    ),
    ...(body?.example
      ? [
          h("h4", {}, "Example"),
          h(
            "pre",
            { tabindex: 0, "aria-label": `Example of ${method.toUpperCase()} ${path}` },
            curl(method, path, body.example),
          ),
        ]
      : []),
    ...section(
      "Response headers",
      ["Header", "Meaning"],
      headers.map(([name, header]) => [
        h("code", {}, name),
        h("span", {}, ...inline(/** @type {any} */ (header).description)),
      ]),
    ),
    ...section("Response body", ["Field", "Type", "Meaning"], fields),
    h("h4", {}, "Status codes"),
    h(
      "ul",
      { class: "statuses" },
      ...Object.entries(operation.responses)
        .filter(([code]) => code !== "422")
        .map(([code, each]) =>
          h("li", {}, h("code", {}, code), " ", /** @type {any} */ (each).description),
        ),
    ),
  );
}

/** @param {string} title @param {string[]} head @param {Child[][]} rows
 * @returns {Node[]} nothing if there are no rows */
const section = (title, head, rows) =>
  rows.length === 0 ? [] : [h("h4", {}, title), table(title, head, rows)];

/** @param {string} name @param {boolean} isRequired */
const named = (name, isRequired) =>
  h("span", {}, h("code", {}, name), isRequired && h("small", { class: "required" }, " required"));

/** @param {Document} document @param {Schema} schema
 * @returns {Schema} the schema that a reference names */
const resolved = (document, schema) =>
  schema.$ref ? document.components.schemas[schema.$ref.split("/").at(-1)] : schema;

/** The fields of a schema and of the objects in it, a row for each.
 * @param {Document} document @param {Schema} given @param {string} [prefix] @param {number} [depth]
 * @returns {Child[][]} */
function fieldsOf(document, given, prefix = "", depth = 0) {
  const schema = resolved(document, given);
  if (depth >= MAX_DEPTH) return [];
  const inner = (/** @type {Schema} */ each, /** @type {string} */ at) =>
    fieldsOf(document, each, at, depth + 1);
  return [
    ...Object.entries(schema.properties ?? {}).flatMap(([name, each]) => [
      [
        named(prefix + name, schema.required?.includes(name)),
        typeOf(each),
        h("span", {}, ...inline(resolved(document, each).description ?? "")),
      ],
      ...inner(each, `${prefix}${name}.`),
    ]),
    ...(schema.items ? inner(schema.items, prefix.replace(/\.$/, "[].")) : []),
    ...(schema.anyOf ?? [])
      .filter((/** @type {Schema} */ each) => each.$ref || each.items || each.properties)
      .flatMap((/** @type {Schema} */ each) => inner(each, prefix)),
  ];
}

/** @param {Schema} schema @returns {string} */
function typeOf(schema) {
  if (schema === undefined) return "";
  if (schema.$ref) return "object";
  if (schema.anyOf) return [...new Set(schema.anyOf.map(typeOf))].join(" or ");
  if (schema.enum)
    return schema.enum.map((/** @type {unknown} */ value) => JSON.stringify(value)).join(", ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `array${schema.items ? ` of ${typeOf(schema.items)}` : ""}`;
  return [schema.type ?? "any"].flat().join(" or ");
}

/** @param {string} method @param {string} path @param {object} body
 * @returns {string} a command for a shell */
const curl = (method, path, body) =>
  [
    `curl -X ${method.toUpperCase()} ${addressOf(path)}`,
    '  -H "authorization: Bearer $KEY"',
    '  -H "content-type: application/json"',
    `  -d '${JSON.stringify(body, null, 2)}'`,
  ].join(" \\\n");
