/** The texts and tool calls of an answer of any of the three APIs, shown while they arrive. */

import { h } from "./dom.js";

/** @import { Api } from "./api.js" */

/** @typedef {"text" | "reasoning" | "call"} Kind */

/** The parts of an answer as elements, to which text is appended. */
export class AnswerParts {
  reasoning = h("p", { class: "said" });
  thoughts = h(
    "details",
    { hidden: true },
    h("summary", {}, "What the model thought"),
    this.reasoning,
  );
  texts = h("div", { class: "texts" });
  note = h("p", { class: "hint", hidden: true });
  calls = h("ul", { class: "calls", hidden: true });
  element = h("div", { class: "content" }, this.thoughts, this.texts, this.note, this.calls);
  /** The element of each part that has begun, by its key.
   * @type {Map<string, HTMLElement>} */
  begun = new Map();

  /** Appends text to a part, which begins if it is new.
   * @param {Kind} kind @param {number | string} key different for each part of a kind
   * @param {string} text @param {string} [name] of the tool that is called */
  add(kind, key, text, name) {
    const id = `${kind} ${key}`;
    const part = this.begun.get(id) ?? this.begin(kind, name ?? "");
    this.begun.set(id, part);
    part.append(text);
  }

  /** @param {Kind} kind @param {string} name @returns {HTMLElement} what the text is appended to */
  begin(kind, name) {
    if (kind === "reasoning") {
      this.thoughts.hidden = false;
      return this.reasoning;
    }
    if (kind === "text") {
      const text = h("p", { class: "said" });
      this.texts.append(text);
      return text;
    }
    const given = h("span");
    this.calls.append(h("li", {}, h("code", {}, `${name}(`, given, ")")));
    const { length } = this.calls.children;
    this.note.hidden = this.calls.hidden = false;
    this.note.textContent =
      length === 1 ? "The model calls a tool:" : `The model calls ${length} tools:`;
    return given;
  }

  /** Shows a whole answer.
   * @param {any} answer */
  show(answer) {
    const messages = [
      ...(answer.choices ?? []).map((/** @type {any} */ choice) => choice.message),
      ...(answer.output ?? []),
      ...(answer.content ? [answer] : []),
    ];
    for (const [at, message] of messages.entries()) {
      const content = message?.content ?? [];
      const parts = typeof content === "string" ? [{ text: content }] : content;
      if (message?.reasoning_content) this.add("reasoning", at, message.reasoning_content);
      for (const [index, part] of parts.entries()) {
        const key = `${at}.${index}`;
        if (part.type === "tool_use") this.add("call", key, JSON.stringify(part.input), part.name);
        else if (part.thinking) this.add("reasoning", key, part.thinking);
        else if (part.text ?? part.refusal) this.add("text", key, part.text ?? part.refusal);
      }
      if (message?.type === "function_call") this.add("call", at, message.arguments, message.name);
      for (const [index, call] of (message?.tool_calls ?? []).entries())
        this.add("call", `${at}.${index}`, call.function?.arguments ?? "", call.function?.name);
    }
  }
}

/** Reads a stream of server-sent events into the parts of an answer. */
export class EventStream {
  /** Why the answer failed, if the stream says so.
   * @type {string | null} */
  error = null;
  /** Whether the stream has said that the answer is complete. */
  isComplete = false;
  /** The last line, which may be incomplete. */
  line = "";
  /** @type {string[]} the data of the event that is being read */
  data = [];

  /** @param {Api} api @param {AnswerParts} parts */
  constructor(api, parts) {
    this.read = READERS[api];
    this.parts = parts;
  }

  /** @param {string} text the next text of the stream */
  add(text) {
    // A carriage return may be the first half of a line's end.
    const lines = (this.line + text).split(/\r\n|\n|\r(?!$)/);
    this.line = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data:")) this.data.push(line.slice(5).trim());
      else if (line === "" && this.data.length > 0) this.end();
    }
  }

  /** Reads the event whose data is complete. */
  end() {
    const data = this.data.join("\n");
    this.data = [];
    if (data === "[DONE]") {
      this.isComplete = true;
      return;
    }
    try {
      this.read(this, JSON.parse(data));
    } catch (error) {
      if (!(error instanceof SyntaxError || error instanceof TypeError)) throw error;
      this.error ??= "An event of the answer could not be read. The streamed events have it.";
    }
  }

  /** @param {any} error as one of the APIs writes it */
  fail(error) {
    this.error ??= error?.message ?? "The model ended its answer with an error.";
  }
}

/** What an event adds to an answer, by the API that writes it.
 * @type {Record<Api, (stream: EventStream, event: any) => void>} */
const READERS = {
  chat(stream, { choices = [], error }) {
    if (error) stream.fail(error);
    for (const { index, delta = {} } of choices) {
      const { content, refusal, reasoning_content, tool_calls } = delta;
      if (reasoning_content) stream.parts.add("reasoning", index, reasoning_content);
      if (content ?? refusal) stream.parts.add("text", index, content ?? refusal);
      for (const call of tool_calls ?? []) {
        const { name, arguments: given } = call.function ?? {};
        stream.parts.add("call", `${index}.${call.index}`, given ?? "", name);
      }
    }
  },

  responses(stream, event) {
    const { type, output_index: at, item, delta } = event;
    if (type === "response.output_text.delta" || type === "response.refusal.delta")
      stream.parts.add("text", `${at}.${event.content_index}`, delta);
    else if (type.startsWith("response.reasoning") && type.endsWith(".delta"))
      stream.parts.add("reasoning", at, delta);
    else if (type === "response.output_item.added" && item.name)
      stream.parts.add("call", at, "", item.name);
    else if (
      type === "response.function_call_arguments.delta" ||
      type === "response.custom_tool_call_input.delta"
    )
      stream.parts.add("call", at, delta);
    else if (type === "response.completed" || type === "response.incomplete")
      stream.isComplete = true;
    else if (type === "response.failed") stream.fail(event.response?.error);
    else if (type === "error") stream.fail(event.error ?? event);
  },

  messages(stream, event) {
    const { type, index, content_block: block, delta } = event;
    if (type === "content_block_start") {
      if (block.type === "tool_use") stream.parts.add("call", index, "", block.name);
      else if (block.text) stream.parts.add("text", index, block.text);
    } else if (type === "content_block_delta") {
      if (delta.type === "input_json_delta") stream.parts.add("call", index, delta.partial_json);
      else if (delta.type === "text_delta") stream.parts.add("text", index, delta.text);
      else if (delta.type === "thinking_delta")
        stream.parts.add("reasoning", index, delta.thinking);
    } else if (type === "message_stop") stream.isComplete = true;
    else if (type === "error") stream.fail(event.error);
  },
};
