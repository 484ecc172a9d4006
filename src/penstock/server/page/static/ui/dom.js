// Making elements. Text is only ever set as text: there is no way here to give markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. `properties` sets DOM properties (`className`, `value`), `on` listeners by event,
 * `data` dataset entries, and `attributes` attributes (`aria-label`); children are nodes or texts,
 * and null or false ones are left out.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  const { on = {}, data = {}, attributes = {}, ...plain } = properties;
  Object.assign(made, plain);
  Object.assign(made.dataset, data);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  for (const [name, listener] of Object.entries(on)) made.addEventListener(name, listener);
  append(made, children);
  return made;
}

export function append(parent, children) {
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) parent.append(child);
  }
  return parent;
}

export function replaceChildren(parent, ...children) {
  parent.replaceChildren();
  return append(parent, children);
}

const PATHS = {
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  plus: "M10 4v12M4 10h12",
  search: "M9 14.5a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11ZM13 13l4 4",
  send: "M10 16.5v-13M4.5 9 10 3.5 15.5 9",
  stop: "M5.5 5.5h9v9h-9z",
  copy: "M7 7V3.5h9.5V13H13M3.5 7H13v9.5H3.5z",
  check: "m4 10.5 4 4 8-9",
  edit: "M3.5 16.5 4.4 13 13.5 3.9l2.6 2.6L7 15.6zM11.5 6l2.5 2.5",
  again: "M15.8 8A6.2 6.2 0 1 0 16 12.2M16 3.5V8h-4.5",
  left: "m12 4.5-5.5 5.5 5.5 5.5",
  right: "m8 4.5 5.5 5.5L8 15.5",
  trash: "M4 5.5h12M8 5.5v-2h4v2M5.5 5.5l.7 11h7.6l.7-11M8.5 8.5v5M11.5 8.5v5",
  close: "m5 5 10 10M15 5 5 15",
  clip: "m15.5 9-5.6 5.6a3.4 3.4 0 0 1-4.8-4.8l6-6a2.3 2.3 0 0 1 3.2 3.2l-5.8 5.8a1.1 1.1 0 0 1-1.6-1.6l5-5",
  sliders: "M3 6h8M15 6h2M3 14h2M9 14h8M13 4v4M7 12v4",
  save: "M10 3.5v9M6 9l4 4 4-4M3.5 16.5h13",
  open: "M10 13V4M6 7.5l4-4 4 4M3.5 16.5h13",
};

/** An icon of 20 by 20 units in the colour of the text, which screen readers pass over. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of [
    ["viewBox", "0 0 20 20"],
    ["class", "icon"],
    ["aria-hidden", "true"],
  ]) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon; `label` is its name, and shown while the pointer rests on it. */
export function iconButton(name, label, click, properties = {}) {
  return element(
    "button",
    {
      type: "button",
      className: "icon-button",
      title: label,
      ...properties,
      attributes: { "aria-label": label, ...properties.attributes },
      on: { click, ...properties.on },
    },
    icon(name),
  );
}
