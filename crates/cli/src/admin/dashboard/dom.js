// Builds elements. All data becomes text nodes, so no data can become markup.

/** An element with attributes and children. A child is an element or a text. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'onclick' || key === 'onsubmit') made.addEventListener(key.slice(2), value);
    else if (value !== null) made.setAttribute(key, value);
  }
  const shown = children.flat().filter((child) => child !== null);
  made.append(...shown.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** A button for an action. */
export function button(action, text, onclick) {
  return element('button', { onclick, 'data-action': action }, text);
}

/** A table. Each column is { title, cell, isNumber }. */
export function table(columns, rows, empty) {
  if (rows.length === 0) return element('p', { class: 'soft' }, empty);
  const kind = (column) => (column.isNumber ? 'number' : null);
  const head = columns.map((column) => element('th', { class: kind(column) }, column.title));
  const body = rows.map((row) => element('tr', {}, columns.map((column) => {
    const shown = column.cell(row);
    return element('td', { class: kind(column), 'data-title': column.title }, shown ?? '–');
  })));
  return element('table', {}, element('thead', {}, element('tr', {}, head)), element('tbody', {}, body));
}

/** Names and values, as a definition list. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined);
  return element('dl', {}, shown.flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
}

/** A link to a page of the dashboard. */
export function link(path, text, attributes = {}) {
  return element('a', { href: `#/${path.map(encodeURIComponent).join('/')}`, ...attributes }, text);
}

/** A duration in words: 3 min, 2 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return null;
  const steps = [['d', 86400], ['h', 3600], ['min', 60], ['s', 1]];
  const [unit, length] = steps.find(([, length]) => seconds >= length) ?? ['s', 1];
  return `${Math.floor(seconds / length)} ${unit}`;
}

/** Text, or other bytes as digits. */
export function bytes(value) {
  return typeof value === 'string' ? value : `hex: ${value.hex}`;
}

/** Headers as lines. */
export function headerLines(headers) {
  return headers.map(([name, value]) => `${bytes(name)}: ${bytes(value)}`).join('\n');
}

/** Shows a message to the operator, or hides it. */
export function say(text) {
  document.getElementById('message').textContent = text;
}
