// Small help. Text is only ever set as text: names, reasons and Events are other people's.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children; strings become text. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function text(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const time = (at) => clock.format(new Date(at * 1000));

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString()} ${count === 1 ? one : many}`;

/** Pools keep their colour for as long as the page lives. */
const colours = new Map();
export const COLOURS = 7;
export function colour(pool) {
  if (!colours.has(pool)) colours.set(pool, colours.size % COLOURS);
  return colours.get(pool);
}
