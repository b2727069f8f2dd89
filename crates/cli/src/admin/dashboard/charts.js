// Small charts of the last hour.

import { element } from './dom.js';

/** How many bars a chart has: the minutes that are kept, and the one that runs. */
const BARS = 61;
const WIDTH = 4;
const HEIGHT = 40;

/** An element of a drawing. The namespace is that of the empty drawing in the page. */
function drawn(name, attributes, ...children) {
  const { namespaceURI } = document.getElementById('drawing').content.firstElementChild;
  const made = document.createElementNS(namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/**
 * A chart with a bar for each minute, the oldest at the left. `value` is the height of a minute, `shown` a height as
 * text, and `sum` the text about the hour.
 */
export function chart(name, title, minutes, { value, shown = String, sum, isAlarm = false }) {
  const values = minutes.map((minute) => value(minute) ?? 0);
  const most = Math.max(0, ...values);
  const first = BARS - values.length;
  const bars = values.map((height, place) => {
    const length = most === 0 ? 0 : Math.max(height > 0 ? 1 : 0, (HEIGHT * height) / most);
    const at = { x: (first + place) * WIDTH, y: HEIGHT - length, width: WIDTH - 1, height: length };
    const time = minutes[place].begun.slice(11, 16);
    return drawn('rect', at, drawn('title', {}, `${time}: ${shown(height)}`));
  });
  const label = `${title}: ${sum} in the last hour, at most ${shown(most)} in a minute`;
  const viewBox = `0 0 ${BARS * WIDTH} ${HEIGHT}`;
  const view = { viewBox, preserveAspectRatio: 'none', role: 'img', 'aria-label': label };
  const kind = isAlarm && most > 0 ? 'chart alarm' : 'chart';
  return element('figure', { class: kind, 'data-chart': name },
    element('figcaption', {}, element('strong', {}, sum), ` ${title}`),
    drawn('svg', view, ...bars),
    element('p', { class: 'soft' }, most === 0 ? 'none in the last hour' : `at most ${shown(most)} in a minute`));
}
