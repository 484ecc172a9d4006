import { element, icon, iconButton } from "../ui/dom.js";
import { notice } from "../ui/notice.js";
import { Attachments, LONG_PASTE } from "./attachments.js";

const UTF8 = new TextDecoder("utf-8", { fatal: true });

/**
 * Where a message is written. `send(text, attachments)` is called for Enter, `stop()` for the button
 * that takes its place while an answer comes.
 */
export class Composer {
  #busy = false;

  constructor({ send, stop, label = "Message", tools = [] }) {
    this.send = send;
    this.attachments = new Attachments(() => this.#update());
    this.input = element("textarea", {
      rows: 1,
      placeholder: label,
      attributes: { "aria-label": label, "aria-describedby": "composer-note", enterkeyhint: "send" },
      on: {
        input: () => this.#update(),
        keydown: (event) => this.#key(event),
        paste: (event) => this.#paste(event),
      },
    });
    this.picker = element("input", {
      type: "file",
      multiple: true,
      hidden: true,
      on: { change: () => this.#picked() },
    });
    this.sendButton = element(
      "button",
      { type: "submit", className: "send", title: "Send (Enter)", attributes: { "aria-label": "Send" } },
      icon("send"),
    );
    this.stopButton = element(
      "button",
      {
        type: "button",
        className: "send stop",
        hidden: true,
        title: "Stop (Esc)",
        attributes: { "aria-label": "Stop" },
        on: { click: stop },
      },
      icon("stop"),
    );
    this.element = element(
      "form",
      { className: "composer", on: { submit: (event) => (event.preventDefault(), this.submit()) } },
      this.attachments.node,
      this.input,
      element(
        "div",
        { className: "composer-row" },
        iconButton("clip", "Attach a text file", () => this.picker.click()),
        tools,
        this.picker,
        element("span", { className: "note", id: "composer-note" }, "Enter sends, Shift+Enter begins a line"),
        this.sendButton,
        this.stopButton,
      ),
    );
    this.#update();
  }

  get text() {
    return this.input.value;
  }

  set(text, attachments = []) {
    this.input.value = text;
    this.attachments.set(attachments);
    this.#update();
  }

  setLabel(label) {
    this.input.placeholder = label;
    this.input.setAttribute("aria-label", label);
  }

  /** While an answer comes, the next message can be written, and not sent. */
  set busy(busy) {
    const focused = document.activeElement;
    this.#busy = busy;
    this.sendButton.hidden = busy;
    this.stopButton.hidden = !busy;
    if (focused === this.sendButton || focused === this.stopButton) this.input.focus();
    this.#update();
  }

  submit() {
    const text = this.text.trim();
    if (this.#busy || (!text && !this.attachments.texts.length)) return;
    this.input.value = "";
    this.send(text, this.attachments.take());
    this.#update();
  }

  #update() {
    const { input } = this;
    this.sendButton.disabled = !input.value.trim() && !this.attachments.texts.length;
    input.style.height = "auto";
    input.style.height = `${input.scrollHeight}px`;
  }

  #key(event) {
    if (event.key !== "Enter" || event.shiftKey || event.altKey || event.isComposing) return;
    event.preventDefault();
    this.submit();
  }

  /** A long text beside a message is easier to handle closed, and costs no layout. */
  #paste(event) {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (text.length < LONG_PASTE) return;
    event.preventDefault();
    this.attachments.add("Pasted text", text);
  }

  async #picked() {
    for (const file of this.picker.files) {
      try {
        this.attachments.add(file.name, UTF8.decode(await file.arrayBuffer()));
      } catch {
        notice(`${file.name} is no text in UTF-8, and was not attached.`);
      }
    }
    this.picker.value = "";
    this.input.focus();
  }
}
