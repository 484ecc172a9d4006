import { element } from "../ui/dom.js";
import { showDialog } from "../ui/dialog.js";

/** Ask for the API key until one is given. */
export function askForKey(wrong) {
  return new Promise((resolve) => {
    let given = null;
    const input = element("input", {
      id: "api-key",
      type: "password",
      autocomplete: "off",
      spellcheck: false,
      required: true,
      attributes: { "aria-describedby": "api-key-note" },
    });
    const form = element(
      "form",
      {
        className: "key-form",
        on: {
          submit: (event) => {
            event.preventDefault();
            given = input.value.trim();
            if (given) dialog.close();
          },
        },
      },
      wrong &&
        element(
          "p",
          { className: "error", attributes: { role: "alert" } },
          "The server does not take that key.",
        ),
      element("label", { htmlFor: "api-key" }, "API key"),
      input,
      element(
        "p",
        { id: "api-key-note", className: "note" },
        "This server needs a key. It is kept in this tab's memory until the tab is closed or reloaded, and nowhere else.",
      ),
      element("button", { type: "submit", className: "primary" }, "Use this key"),
    );
    const dialog = showDialog("Key needed", form, () => {
      if (given) resolve(given);
      else askForKey(wrong).then(resolve);
    });
    input.focus();
  });
}
