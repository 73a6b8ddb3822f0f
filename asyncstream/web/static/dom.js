// Elements are made here and nowhere else: text is only ever text.

export const byId = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

// Changes the text only if it is another one, so that a screen reader is not told the same again.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Shows a list of things: each has a key, its element is made once and kept.
export function keep(parent, items, key, create, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let after = null;
  for (const item of items) {
    const name = String(key(item));
    let element = there.get(name);
    if (element === undefined) {
      element = create(item);
      element.dataset.key = name;
    }
    there.delete(name);
    update(element, item);
    const next = after === null ? parent.firstElementChild : after.nextElementSibling;
    if (element !== next) parent.insertBefore(element, next); // moving it would lose the focus
    after = element;
  }
  for (const element of there.values()) element.remove();
}
