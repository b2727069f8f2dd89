// Dead letters of a worker.

import { read, write } from './api.js';
import { confirm } from './confirm.js';
import { button, bytes, element, facts, headerLines, link, say, table } from './dom.js';

/** The list of dead letters. */
export async function deadLetters(process, cursor) {
  const page = await read('dead-letters', { limit: 100, cursor });
  return [
    element('h2', {}, 'Dead letters'),
    table([
      { title: 'letter', cell: (letter) => link(['dead-letter', letter.id], letter.id) },
      { title: 'reason', cell: (letter) => letter.reason },
      { title: 'attempts', cell: (letter) => letter.attempts, isNumber: true },
      { title: 'operation', cell: (letter) => letter.operation && element('span', { class: 'id' }, letter.operation) },
      { title: 'source', cell: (letter) => letter.source },
      { title: 'time', cell: (letter) => letter.time },
      { title: 'redriven at', cell: (letter) => letter.redrive_at },
    ], page.dead_letters, page.next ? 'None on this page.' : 'There is no dead letter.'),
    page.next ? element('p', {}, link(['dead-letters', page.next], 'next page')) : '',
  ];
}

/** One dead letter. */
export async function deadLetter(process, id) {
  const letter = await read(`dead-letters/${encodeURIComponent(id)}`);
  return [
    element('h2', {}, 'Dead letter'),
    facts([
      ['letter', element('code', {}, letter.id)],
      ['reason', letter.reason],
      ['last error', letter.cause],
      ['what to do', [letter.advice, ' ', element('a', { href: 'guide/when_a_message_is_dead' }, 'the guide')]],
      ['attempts', letter.attempts],
      ['operation', letter.operation],
      ['source', letter.source],
      ['time', letter.time],
      ['payload', `${letter.payload_bytes} bytes`],
    ]),
    element('p', { class: 'actions' },
      ...actionsOf(letter).map((action) => button(action.name, `${action.title} …`, () => decide(letter, action))),
      button('payload', 'Show the payload', () => showPayload(id))),
    element('div', { id: 'payload' }),
    element('h2', {}, 'Headers'),
    element('pre', {}, headerLines(letter.headers)),
  ];
}

async function showPayload(id) {
  const { payload } = await read(`dead-letters/${encodeURIComponent(id)}`, { payload: true });
  document.getElementById('payload').replaceChildren(element('pre', {}, bytes(payload)));
}

const REDRIVE = {
  name: 'redrive',
  title: 'Redrive',
  path: 'redrive',
  text: 'A worker processes the message again.',
  body: {},
};

// Without the operator's word, a worker with a target makes such a message a dead letter again.
const REDRIVE_NOT_DONE = {
  name: 'not-done',
  title: 'Redrive as not done',
  path: 'redrive',
  text: 'The effect did not happen, and no attempt still runs. If the effect did happen, it then happens twice.',
  body: { not_done: true },
};

const REDRIVE_DONE = {
  name: 'done',
  title: 'Record as done',
  path: 'redrive',
  text: 'The effect did happen. A worker records that, removes the letter, and does not process the message.',
  body: { done: true },
};

const DROP = {
  name: 'drop',
  title: 'Drop',
  path: 'drop',
  text: 'The message is removed and never processed. This cannot be undone.',
  body: {},
};

function actionsOf(letter) {
  // A word was given: what remains is to change it.
  if (letter.reason === 'done') return [REDRIVE_NOT_DONE, DROP];
  if (letter.reason === 'not-done') return [REDRIVE_DONE, DROP];
  const isUnknown = ['outcome-unknown', 'record-damaged'].includes(letter.reason);
  return isUnknown ? [REDRIVE, REDRIVE_NOT_DONE, REDRIVE_DONE, DROP] : [REDRIVE, DROP];
}

async function decide(letter, { title, text, path, body }) {
  const shown = [
    ['letter', letter.id], ['reason', letter.reason], ['last error', letter.cause], ['attempts', letter.attempts],
    ['time', letter.time],
  ];
  if ((await confirm({ title, text, shown, button: title })) === null) return;
  say('');
  try {
    await write(`dead-letters/${encodeURIComponent(letter.id)}/${path}`, { ...body, seen: letter.seen });
    window.location.hash = '#/dead-letters';
  } catch (error) {
    say(error.message);
  }
}
