// Chat completions by Vercel's `ai`, through its provider for OpenAI-compatible endpoints and
// through the one for OpenAI.

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

import { apiKey, ASK, ASK_BOTH, baseURL, described, run } from "./scenario.mjs";

const compatible = createOpenAICompatible({
  name: "switchcraft",
  baseURL,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL, apiKey });
const models = {
  compatible: compatible("switchcraft"),
  openai: openai.chat("switchcraft"),
  responses: openai.responses("switchcraft"),
};
const model = models[process.argv[4]];

const asked = [];
const weather = tool({
  description: "Tell the weather.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    asked.push(city);
    return { temperature: -3 };
  },
});
const silent = { onError: () => {} };
const once = { model, maxRetries: 0 };
const callsOf = (calls) => calls.map(({ toolName, input }) => [toolName, input]);

async function caught(ask) {
  try {
    return { answered: await ask() };
  } catch (error) {
    return described(error);
  }
}

async function parts(stream) {
  const seen = [];
  for await (const part of stream.fullStream) seen.push(part);
  return seen;
}

await run({
  async loop() {
    const result = await generateText({
      ...once,
      messages: ASK,
      tools: { get_weather: weather },
      stopWhen: stepCountIs(5),
    });
    return {
      asked,
      text: result.text,
      steps: result.steps.map((step) => step.finishReason),
      usage: result.totalUsage,
      model: result.response.modelId,
    };
  },

  async streamedLoop() {
    const stream = streamText({
      ...once,
      messages: ASK,
      tools: { get_weather: weather },
      stopWhen: stepCountIs(5),
    });
    const seen = await parts(stream);
    return {
      asked,
      text: await stream.text,
      steps: (await stream.steps).map((step) => step.finishReason),
      usage: await stream.totalUsage,
      errors: seen.filter((part) => part.type === "error"),
    };
  },

  async parallelCalls() {
    const { execute: _, ...unanswered } = weather;
    const stream = streamText({
      ...once,
      messages: ASK_BOTH,
      tools: { get_weather: unanswered, get_time: unanswered },
    });
    return callsOf(await stream.toolCalls);
  },

  async structured() {
    const City = z.object({ name: z.string(), population: z.number() });
    const { output } = await generateText({
      ...once,
      prompt: "Describe Oslo",
      output: Output.object({ schema: City }),
    });
    return output;
  },

  async errors() {
    const failing = (how) => () =>
      generateText({ ...once, messages: ASK, headers: { "x-sandbox": how } });
    const broken = streamText({
      ...once,
      ...silent,
      messages: ASK,
      headers: { "x-sandbox": "cut_after=2" },
    });
    const brokenParts = await parts(broken);
    return {
      badRequest: await caught(failing("status=400")),
      rateLimit: await caught(failing("status=429")),
      server: await caught(failing("status=500")),
      brokenStream: brokenParts.map((part) => part.type),
    };
  },

  async abortedStream() {
    const controller = new AbortController();
    const stream = streamText({
      ...once,
      ...silent,
      messages: ASK,
      headers: { "x-sandbox": "chunk_delay_s=1" },
      abortSignal: controller.signal,
    });
    const seen = [];
    for await (const part of stream.fullStream) {
      seen.push(part.type);
      if (part.type === "text-delta") controller.abort();
    }
    return seen;
  },
});
