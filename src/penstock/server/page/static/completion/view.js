import { Figures, sampling } from "../chat/answer.js";
import { samplingFields } from "../chat/settings.js";
import { ConnectionLost, ServerError } from "../server/api.js";
import { announce } from "../ui/announce.js";
import { element } from "../ui/dom.js";
import { counted, seconds, short } from "../ui/format.js";
import { oncePerFrame } from "../ui/frames.js";

const TEXT = "penstock.completion";
const MAX_TOKENS = 256;

/** A text that the model continues, for models that were not made for chats. */
export class CompletionView {
  #controller = null;
  #before = null; // the text before the last continuation

  constructor(api, card, storage) {
    this.api = api;
    this.card = card;
    this.storage = storage;
    this.options = { max_tokens: MAX_TOKENS };
    this.text = element("textarea", {
      className: "completion-text",
      value: storage.getItem(TEXT) ?? "",
      placeholder: "Write the beginning of a text; the model continues it.",
      spellcheck: false,
      attributes: { "aria-label": "Text" },
      on: { keydown: (event) => this.#key(event), input: () => this.#save() },
    });
    this.go = element(
      "button",
      { type: "button", className: "primary", on: { click: () => this.#continue() } },
      "Continue",
    );
    this.halt = element("button", { type: "button", hidden: true, on: { click: () => this.stop() } }, "Stop");
    this.undo = element(
      "button",
      { type: "button", disabled: true, on: { click: () => this.#undo() } },
      "Take back",
    );
    this.note = element("p", { className: "figures" }, "Ctrl+Enter continues, Esc stops");
    this.trouble = element("p", { className: "error", hidden: true, attributes: { role: "alert" } });
    this.element = element(
      "div",
      { className: "completion" },
      element("h1", {}, card.id),
      element("p", { className: "note" }, "This model has no chat template: it continues a text."),
      this.text,
      this.trouble,
      element("div", { className: "completion-row" }, this.go, this.halt, this.undo, this.note),
      samplingFields(this.options, card, () => {}),
    );
  }

  focus() {
    this.text.focus();
  }

  stop() {
    this.#controller?.abort();
    return this.#controller !== null;
  }

  #key(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.#continue();
  }

  #undo() {
    this.text.value = this.#before;
    this.undo.disabled = true;
    this.#save();
    this.focus();
  }

  async #continue() {
    if (this.#controller || !this.text.value) return;
    const controller = new AbortController();
    this.#controller = controller;
    this.#before = this.text.value;
    this.#setBusy(true);
    this.trouble.hidden = true;
    const figures = new Figures();
    try {
      await this.#stream(figures, controller.signal);
    } catch (error) {
      if (error instanceof ServerError || error instanceof ConnectionLost) this.#fail(error.message);
      else if (!controller.signal.aborted) throw error;
    } finally {
      this.#controller = null;
      this.#setBusy(false);
      this.#save();
      this.#showFigures(figures.data());
    }
  }

  async #stream(figures, signal) {
    const body = {
      model: this.card.id,
      prompt: this.text.value,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
      ...sampling(this.options, this.card),
    };
    let pending = "";
    const append = () => {
      if (!pending) return;
      const { text } = this;
      const atEnd = text.scrollHeight - text.scrollTop - text.clientHeight < 40;
      text.setRangeText(pending, text.value.length, text.value.length, "preserve");
      pending = "";
      if (atEnd) text.scrollTop = text.scrollHeight;
    };
    const show = oncePerFrame(append);
    try {
      for await (const event of this.api.events("/v1/completions", body, signal)) {
        if (event.usage) figures.usage = event.usage;
        const text = event.choices?.[0]?.text;
        if (!text) continue;
        figures.token();
        pending += text;
        show();
      }
    } finally {
      append(); // before the text is saved
    }
  }

  #setBusy(busy) {
    this.go.hidden = busy;
    this.halt.hidden = !busy;
    this.undo.disabled = busy;
    this.text.readOnly = busy;
    if (!busy) this.focus();
    else this.halt.focus();
  }

  #fail(message) {
    this.trouble.textContent = message;
    this.trouble.hidden = false;
  }

  #showFigures({ tokens, rate, firstToken }) {
    if (firstToken === undefined) return;
    const texts = [counted(tokens ?? 0, "token"), `first after ${seconds(firstToken)}`];
    if (rate) texts.splice(1, 0, `${short(rate)} tokens/s`);
    this.note.textContent = texts.join(" · ");
    announce("The text was continued.");
  }

  #save() {
    try {
      this.storage.setItem(TEXT, this.text.value);
    } catch {
      this.storage.removeItem(TEXT); // rather nothing than an old text
    }
  }
}
