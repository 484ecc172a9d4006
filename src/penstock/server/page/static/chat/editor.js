import { element } from "../ui/dom.js";
import { Attachments } from "./attachments.js";

/** In the place of a message's text, a field to change it; `done(text, attachments)` takes both. */
export function editMessage(view, done) {
  const { node } = view;
  const attachments = new Attachments();
  attachments.set(node.attachments ?? []);
  const before = [...view.element.childNodes];
  view.edited = true;
  const cancel = () => {
    view.edited = false;
    view.element.replaceChildren(...before);
    view.element.querySelector('[aria-label="Edit"]')?.focus();
  };
  const submit = () => {
    const text = input.value.trim();
    if (!text && !attachments.texts.length) return;
    view.edited = false;
    done(text, attachments.texts);
  };
  const input = element("textarea", {
    value: node.content,
    rows: Math.min(12, node.content.split("\n").length + 1),
    attributes: { "aria-label": "Edit the message" },
    on: {
      keydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          cancel();
        } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
          event.preventDefault();
          submit();
        }
      },
    },
  });
  view.element.replaceChildren(
    element(
      "form",
      { className: "editor", on: { submit: (event) => (event.preventDefault(), submit()) } },
      attachments.node,
      input,
      element(
        "div",
        { className: "editor-row" },
        element("span", { className: "note" }, "What was there before stays as a branch."),
        element("button", { type: "button", on: { click: cancel } }, "Cancel"),
        element("button", { type: "submit", className: "primary" }, "Send"),
      ),
    ),
  );
  input.focus();
  input.setSelectionRange(input.value.length, input.value.length);
}
