// Conversations by the vendors' clients for Node: each prints what the client understood.

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const url = process.argv[2];
const { cells, system, tools, results, maxTokens, thinkingTokens } = JSON.parse(process.argv[3]);
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "client-key", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "client-key", maxRetries: 0 });

/** One API: the first messages, the results of calls, a request, and what an answer says. */
const apis = {
  chat: {
    results: (calls) =>
      calls.map(([id, name]) => ({ role: "tool", tool_call_id: id, content: results[name] })),
    async ask({ model, stream, thinks }, history) {
      const request = {
        model,
        messages: [{ role: "system", content: system }, ...history],
        tools: Object.entries(tools).map(([name, parameters]) => ({
          type: "function",
          function: { name, parameters, strict: true },
        })),
        ...(thinks && { reasoning_effort: "medium" }),
      };
      const options = { ...request, stream_options: { include_usage: true } };
      const answer = stream
        ? await streamedChat(options)
        : await openai.chat.completions.create(request);
      const [{ message, finish_reason: stop }] = answer.choices;
      const calls = (message.tool_calls ?? []).map(({ id, function: { name, arguments: text } }) => [
        id,
        name,
        JSON.parse(text),
      ]);
      const heard = { text: message.content ?? "", thinking: message.reasoning_content ?? "" };
      const { prompt_tokens: input, prompt_tokens_details: details } = answer.usage;
      const tokens = [input, details.cached_tokens, answer.usage.completion_tokens];
      return [{ ...heard, calls, stop, tokens }, [message]];
    },
  },

  responses: {
    results: (calls) =>
      calls.map(([id, name]) => ({
        type: "function_call_output",
        call_id: id,
        output: results[name],
      })),
    async ask({ model, stream, thinks }, history) {
      const request = {
        model,
        instructions: system,
        input: history,
        tools: Object.entries(tools).map(([name, parameters]) => ({
          type: "function",
          name,
          parameters,
          strict: true,
        })),
        store: false,
        include: ["reasoning.encrypted_content"],
        ...(thinks && { reasoning: { effort: "medium", summary: "auto" } }),
      };
      const answer = stream
        ? await openai.responses.stream(request).finalResponse()
        : await openai.responses.create(request);
      const items = answer.output;
      const calls = items
        .filter((item) => item.type === "function_call")
        .map((item) => [item.call_id, item.name, JSON.parse(item.arguments)]);
      const thinking = items
        .filter((item) => item.type === "reasoning")
        .flatMap((item) => item.summary.map((part) => part.text))
        .join("");
      const said = items.map(({ parsed_arguments: _, ...item }) => item);
      const heard = { text: answer.output_text, thinking, calls };
      const { input_tokens: input, input_tokens_details: details } = answer.usage;
      const tokens = [input, details.cached_tokens, answer.usage.output_tokens];
      return [{ ...heard, stop: answer.status, tokens }, said];
    },
  },

  messages: {
    results: (calls) => [
      {
        role: "user",
        content: calls.map(([id, name]) => ({
          type: "tool_result",
          tool_use_id: id,
          content: results[name],
        })),
      },
    ],
    async ask({ model, stream, thinks }, history) {
      const request = {
        model,
        system,
        messages: history,
        max_tokens: maxTokens,
        tools: Object.entries(tools).map(([name, schema]) => ({ name, input_schema: schema })),
        ...(thinks && { thinking: { type: "enabled", budget_tokens: thinkingTokens } }),
      };
      const answer = stream
        ? await anthropic.messages.stream(request).finalMessage()
        : await anthropic.messages.create(request);
      const of = (type) => answer.content.filter((block) => block.type === type);
      const heard = {
        text: of("text").map((block) => block.text).join(""),
        thinking: of("thinking").map((block) => block.thinking).join(""),
        calls: of("tool_use").map(({ id, name, input }) => [id, name, input]),
      };
      const said = [{ role: "assistant", content: answer.content }];
      const { input_tokens: input, cache_read_input_tokens: cached } = answer.usage;
      const written = answer.usage.cache_creation_input_tokens;
      const tokens = [input + cached + written, cached, answer.usage.output_tokens];
      return [{ ...heard, stop: answer.stop_reason, tokens }, said];
    },
  },
};

/** A streamed chat, whose reasoning is added up: the client keeps only the last piece of it. */
async function streamedChat(options) {
  const events = openai.chat.completions.stream(options);
  let reasoning = "";
  for await (const chunk of events) reasoning += chunk.choices[0]?.delta.reasoning_content ?? "";
  const answer = await events.finalChatCompletion();
  if (reasoning) answer.choices[0].message.reasoning_content = reasoning;
  return answer;
}

/** A conversation of one request, and a second one if the model calls tools. */
async function converse(cell) {
  const api = apis[cell.client];
  const history = [{ role: "user", content: cell.text }];
  try {
    const [first, said] = await api.ask(cell, history);
    if (!first.calls.length) return [first];
    const [second] = await api.ask(cell, [...history, ...said, ...api.results(first.calls)]);
    return [first, second];
  } catch (error) {
    return [{ error: error.constructor.name, status: error.status ?? null, message: error.message }];
  }
}

const heard = [];
for (const cell of cells) heard.push(await converse(cell));
process.stdout.write(JSON.stringify(heard));
