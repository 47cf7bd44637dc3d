/** An input for a team's name, which suggests the teams that match. */

import * as api from "./api.js";
import { h } from "./dom.js";

const SUGGESTIONS = 20;
const TYPING_MS = 150;

export class TeamField {
  /** @param {string} id @param {string} placeholder @param {() => void} [onchange] */
  constructor(id, placeholder, onchange = () => {}) {
    this.onchange = onchange;
    this.list = h("datalist", { id: `${id}-names` });
    this.input = h("input", {
      id,
      class: "control",
      type: "text",
      list: this.list.id,
      placeholder,
      autocomplete: "off",
      spellcheck: "false",
      maxlength: 200,
      onfocus: () => this.suggest(),
      oninput: () => this.typed(),
      onchange,
    });
    /** The control first, as labels need it. */
    this.elements = [this.input, this.list];
  }

  get value() {
    return this.input.value.trim();
  }
  set value(name) {
    this.input.value = name;
  }

  typed() {
    // Browsers do not report a suggestion that was chosen as a change before the focus moves.
    if ([...this.list.options].some(({ value }) => value === this.input.value)) this.onchange();
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.suggest(), TYPING_MS);
  }

  async suggest() {
    try {
      const { teams } = await api.teams({ limit: String(SUGGESTIONS), search: this.value });
      this.list.replaceChildren(...teams.map(({ name }) => h("option", { value: name })));
    } catch {
      // then a name has to be typed without help
    }
  }
}
