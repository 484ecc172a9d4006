import { element, iconButton } from "./dom.js";

/**
 * Show a modal dialog with a title and content. Esc closes it, and so does its button; the
 * focus then returns to where it was, as browsers do for a dialog element. `closed` is called once.
 */
export function showDialog(title, content, closed = () => {}) {
  const dialog = element(
    "dialog",
    { attributes: { "aria-label": title } },
    element(
      "header",
      {},
      element("h2", {}, title),
      iconButton("close", "Close", () => dialog.close()),
    ),
    content,
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    closed();
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  // Esc here is the dialog's: it stops no answer.
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "Escape") event.stopPropagation();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
