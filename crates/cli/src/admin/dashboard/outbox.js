// The outbox of a relay: its parked keys, and the rows that wait.

import { read, write } from './api.js';
import { confirm } from './confirm.js';
import { button, duration, element, facts, link, say, table } from './dom.js';

/** The counts, and the keys that wait for an operator. */
export async function outbox(process, cursor) {
  const [page, waiting] = await Promise.all([
    read('outbox', { limit: 100, cursor }),
    read('outbox/waiting', { limit: 100 }),
  ]);
  return [
    element('h2', {}, 'Outbox'),
    facts([
      ['open events', page.counts.open],
      ['age of the oldest', duration(page.counts.oldest_seconds)],
      ['parked keys', page.counts.parked_keys],
    ]),
    element('h2', {}, 'Parked keys'),
    element('div', { id: 'parked' }, table([
      { title: 'key', cell: (parked) => parked.key },
      { title: 'topic', cell: (parked) => parked.topic },
      { title: 'reason', cell: (parked) => parked.reason },
      { title: 'time', cell: (parked) => parked.time },
      { title: '', cell: (parked) => element('span', { class: 'actions' },
        button('resume', 'Resume …', () => decide(parked, 'resume')),
        button('drop', 'Drop …', () => decide(parked, 'drop'))) },
    ], page.parked, page.next ? 'None on this page.' : 'No key is parked.')),
    page.next ? element('p', {}, link(['outbox', page.next], 'next page')) : '',
    element('h2', {}, 'Rows that wait'),
    element('div', { id: 'waiting' }, table([
      { title: 'event', cell: (event) => element('span', { class: 'id' }, event.id) },
      { title: 'topic', cell: (event) => event.topic },
      { title: 'key', cell: (event) => event.key },
      { title: 'written', cell: (event) => event.time },
      { title: 'bytes', cell: (event) => event.payload_bytes, isNumber: true },
      { title: 'waits for', cell: (event) => waitsFor(event) },
    ], waiting.events, 'No row waits: all events are published, or set aside with their keys.')),
    waiting.is_complete ? '' : element('p', { class: 'soft' }, 'There are others behind these.'),
  ];
}

function waitsFor(event) {
  if (event.damage) return element('span', { class: 'alarm' }, `an operator: ${event.damage}`);
  return event.is_parked ? 'its parked key' : 'its publication';
}

const TEXTS = {
  resume: 'The events of the key are published again, from its first one on.',
  drop: 'The refused event is never published. The key stays parked until you resume it. This cannot be undone.',
};

async function decide(parked, action) {
  const title = action === 'resume' ? 'Resume' : 'Drop';
  const shown = [['key', parked.key], ['event', parked.event], ['topic', parked.topic], ['reason', parked.reason]];
  if ((await confirm({ title, text: TEXTS[action], shown, button: title })) === null) return;
  say('');
  let answer;
  try {
    // A drop names the event that the operator saw: the key may be parked for another one by now.
    const body = action === 'drop' ? { key: parked.key, event: parked.event } : { key: parked.key };
    do answer = await write(`outbox/${action}`, body); while (answer.is_complete === false);
  } catch (error) {
    say(error.message);
    return;
  }
  if (action === 'drop') say(`The event ${answer.event} is dropped. Its key stays parked until you resume it.`);
  else window.dispatchEvent(new Event('hashchange'));
}
