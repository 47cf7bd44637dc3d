// Chat completions by the `openai` client for Node.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

import { apiKey, ASK, ASK_BOTH, baseURL, described, run } from "./scenario.mjs";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const tool = (name) => ({
  type: "function",
  function: {
    name,
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
    },
  },
});
const routed = { model: "switchcraft", messages: ASK, tools: [tool("get_weather")] };
const both = { ...routed, messages: ASK_BOTH, tools: [tool("get_weather"), tool("get_time")] };
const calls = (completion) =>
  completion.choices[0].message.tool_calls.map(({ id, function: { name, arguments: text } }) => [
    id,
    name,
    JSON.parse(text),
  ]);

async function caught(ask) {
  try {
    return { answered: await ask() };
  } catch (error) {
    return described(error);
  }
}

/** Gives up on an upstream that never answers. */
function abandoned(request) {
  const options = { signal: AbortSignal.timeout(1000), headers: { "x-sandbox": "hang" } };
  return caught(() => client.chat.completions.create(request, options));
}

await run({
  async whole() {
    const { data, response } = await client.chat.completions.create(both).withResponse();
    const headers = Object.fromEntries(response.headers);
    return { model: data.model, calls: calls(data), usage: data.usage, headers };
  },

  async streamed() {
    const stream = client.chat.completions.stream({
      ...both,
      stream_options: { include_usage: true },
    });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    const final = await stream.finalChatCompletion();
    return {
      model: final.model,
      calls: calls(final),
      usage: final.usage,
      lastChoices: chunks.at(-1).choices.length,
      usages: chunks.filter((chunk) => chunk.usage).length,
    };
  },

  async loop() {
    const asked = [];
    const runner = client.chat.completions.runTools({
      model: "switchcraft",
      messages: ASK,
      tools: [
        {
          type: "function",
          function: {
            ...routed.tools[0].function,
            parse: JSON.parse,
            function: ({ city }) => {
              asked.push(city);
              return "cold";
            },
          },
        },
      ],
    });
    const text = await runner.finalContent();
    return { asked, text, roles: runner.messages.map((message) => message.role) };
  },

  async structured() {
    const City = z.object({ name: z.string(), population: z.number() });
    const answer = await client.chat.completions.parse({
      model: "switchcraft",
      messages: ASK,
      response_format: zodResponseFormat(City, "city"),
    });
    return answer.choices[0].message.parsed;
  },

  async choices() {
    const answer = await client.chat.completions.create({ ...routed, n: 3 });
    return answer.choices.map((choice) => choice.index);
  },

  async errors() {
    const failing = (how) => () =>
      client.chat.completions.create(routed, { headers: { "x-sandbox": how } });
    return {
      badRequest: await caught(failing("status=400")),
      rateLimit: await caught(failing("status=429")),
      server: await caught(failing("status=500")),
      unknown: await caught(() => client.chat.completions.create({ ...routed, model: "unknown" })),
      brokenStream: await caught(async () => {
        const options = { headers: { "x-sandbox": "cut_after=2" } };
        const stream = await client.chat.completions.create({ ...routed, stream: true }, options);
        for await (const _ of stream);
      }),
    };
  },

  async abortedStream() {
    const options = { headers: { "x-sandbox": "chunk_delay_s=60" } };
    const stream = await client.chat.completions.create({ ...routed, stream: true }, options);
    for await (const chunk of stream) {
      stream.controller.abort();
      return { model: chunk.model };
    }
  },

  abortedBeforeTheFirstByte: () => abandoned({ ...routed, stream: true }),

  abortedWholeAnswer: () => abandoned(routed),

  async scripted() {
    const chunks = [];
    const stream = await client.chat.completions.create({ ...routed, stream: true });
    for await (const chunk of stream) chunks.push(chunk);
    return chunks;
  },

  async responses() {
    const { function: described } = routed.tools[0];
    const request = {
      model: "switchcraft",
      input: "What is the weather in Oslo?",
      tools: [{ type: "function", strict: false, ...described }],
    };
    const streamed = await client.responses.stream(request).finalResponse();
    const [call] = streamed.output.filter((item) => item.type === "function_call");
    const output = { type: "function_call_output", call_id: call.call_id, output: "cold" };
    const last = await client.responses.create({
      ...request,
      input: [output],
      previous_response_id: streamed.id,
    });
    return { call: [call.name, JSON.parse(call.arguments)], text: last.output_text };
  },

  async embeddings() {
    const answer = await client.embeddings.create({ model: "small", input: ["one", "two"] });
    return answer.data.map(({ embedding }) => embedding.every(Number.isFinite) && embedding.length);
  },

  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    return { ids, one: (await client.models.retrieve("medium")).id };
  },
});
