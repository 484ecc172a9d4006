import { element } from "../ui/dom.js";
import { showDialog } from "../ui/dialog.js";

const FIELDS = [
  { name: "temperature", label: "Temperature", step: 0.05, min: 0, max: 2 },
  { name: "top_p", label: "Top p", step: 0.01, min: 0.01, max: 1 },
  { name: "top_k", label: "Top k", step: 1, min: -1 },
  { name: "min_p", label: "Min p", step: 0.01, min: 0, max: 1 },
  { name: "max_tokens", label: "Most tokens", step: 1, min: 1 },
  { name: "seed", label: "Seed", step: 1 },
];
const NEUTRAL = { temperature: 1, top_p: 1, min_p: 0 };

/**
 * The number fields of the sampling options. What holds where one is empty is shown in it: the
 * model's default, or else what the server has the page begin with. `options` is changed in place.
 */
export function samplingFields(options, card, changed) {
  const defaults = { ...NEUTRAL, ...card.sampling_defaults, ...card.interactive_defaults };
  return element(
    "fieldset",
    { className: "sampling" },
    element("legend", {}, "Sampling"),
    FIELDS.map(({ name, label, ...bounds }) => {
      const given = defaults[name];
      const input = element("input", {
        type: "number",
        ...bounds,
        value: Number.isFinite(options[name]) ? options[name] : "",
        placeholder: given === undefined ? "not set" : given,
        on: {
          change: () => {
            if (input.value === "") delete options[name];
            else if (input.checkValidity()) options[name] = input.valueAsNumber;
            input.reportValidity();
            changed();
          },
        },
      });
      return element("label", {}, element("span", {}, label), input);
    }),
  );
}

/** Show what a conversation is asked with: the system prompt, the sampling options and the tools. */
export function showSettings(conversation, card, changed) {
  const takesTools = card.capabilities.includes("tools");
  const system = element("textarea", {
    rows: 5,
    value: conversation.system,
    placeholder: "None",
    on: { change: () => ((conversation.system = system.value.trim()), changed()) },
  });
  showDialog(
    "Options of this conversation",
    element(
      "div",
      { className: "settings" },
      element("label", { className: "block" }, element("span", {}, "System prompt"), system),
      samplingFields(conversation.options, card, changed),
      takesTools
        ? toolsField(conversation.options, changed)
        : element("p", { className: "note" }, "This model's chat template takes no tools."),
    ),
  );
}

const EXAMPLE = '[{"type": "function", "function": {"name": "get_weather", "parameters": {…}}}]';

function toolsField(options, changed) {
  const trouble = element("p", { className: "error", hidden: true, attributes: { role: "alert" } });
  const input = element("textarea", {
    rows: 6,
    value: options.tools ?? "",
    placeholder: EXAMPLE,
    spellcheck: false,
    className: "code",
    on: {
      change: () => {
        const wrong = toolsTrouble(input.value);
        trouble.hidden = !wrong;
        trouble.textContent = wrong ?? "";
        if (wrong) return;
        options.tools = input.value.trim();
        changed();
      },
    },
  });
  return element(
    "label",
    { className: "block" },
    element("span", {}, "Tools, as a JSON array"),
    input,
    trouble,
  );
}

function toolsTrouble(text) {
  if (!text.trim()) return null;
  try {
    return Array.isArray(JSON.parse(text)) ? null : "The tools must be an array; it is not saved.";
  } catch (error) {
    return `This is no JSON, and is not saved: ${error.message}`;
  }
}
