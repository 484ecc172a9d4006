import { element, iconButton } from "../ui/dom.js";
import { counted, size } from "../ui/format.js";

/** Characters from which a paste becomes an attachment. */
export const LONG_PASTE = 4000;
const SHOWN = 20000;

/** Texts that go with a message that is being written: shown as names, sent whole. */
export class Attachments {
  constructor(changed = () => {}) {
    this.texts = [];
    this.changed = changed;
    this.node = element("ul", {
      className: "attachments",
      hidden: true,
      attributes: { "aria-label": "Attachments" },
    });
  }

  add(name, text) {
    this.texts.push({ name, text });
    this.#show();
  }

  /** Take everything out. */
  take() {
    const { texts } = this;
    this.texts = [];
    this.#show();
    return texts;
  }

  set(texts) {
    this.texts = [...texts];
    this.#show();
  }

  #show() {
    this.node.hidden = this.texts.length === 0;
    this.node.replaceChildren(
      ...this.texts.map((attachment, i) =>
        element(
          "li",
          {},
          element("span", {}, attachment.name),
          element("span", { className: "note" }, size(attachment.text)),
          iconButton("close", `Remove ${attachment.name}`, () => {
            this.texts.splice(i, 1);
            this.#show();
          }),
        ),
      ),
    );
    this.changed();
  }
}

/** An attachment of a message: closed at first, and its beginning alone where it is very long. */
export function attachmentView({ name, text }) {
  const lines = text.split("\n").length;
  const view = element(
    "details",
    { className: "attachment" },
    element(
      "summary",
      {},
      element("span", {}, name),
      element("span", { className: "note" }, `${size(text)}, ${counted(lines, "line")}`),
    ),
  );
  view.addEventListener(
    "toggle",
    () => {
      const rest = text.length - SHOWN;
      view.append(element("pre", { tabIndex: 0 }, text.slice(0, SHOWN)));
      if (rest > 0) view.append(element("p", { className: "note" }, `${counted(rest, "character")} more`));
    },
    { once: true },
  );
  return view;
}
