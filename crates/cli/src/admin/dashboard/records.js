// Lists of records, one record, and what an operator decides about it.

import { CallError, read, readUntilFound, write } from './api.js';
import { confirm } from './confirm.js';
import { button, bytes, duration, element, facts, headerLines, link, say, table } from './dom.js';

/** The states of the API, and their words on these pages. */
const STATES = {
  'in-progress': 'in progress',
  unknown: 'unknown',
  completed: 'completed',
  released: 'released',
  dead: 'dead',
};

const COLUMNS = [
  { title: 'record', cell: (record) => link(['record', record.rk], record.rk, { class: 'id' }) },
  { title: 'operation', cell: (record) => element('span', { class: 'id' }, record.operation) },
  { title: 'state', cell: (record) => state(record) },
  { title: 'token', cell: (record) => record.token, isNumber: true },
  { title: 'attempt', cell: (record) => record.attempt, isNumber: true },
  { title: 'age', cell: (record) => duration(record.age_seconds), isNumber: true },
];

/** Shown while attempts run. */
const LEASE = { title: 'lease', cell: (record) => lease(record) };

function lease(record) {
  if (record.lease_seconds === null) return null;
  const words = `${Math.round(record.lease_seconds_left)} of ${Math.round(record.lease_seconds)} s left`;
  return element('span', { class: isNearItsEnd(record) ? 'alarm' : null }, words);
}

/** Whether nobody renews the lease of a running attempt in time. An attempt renews it after each third. */
export function isNearItsEnd(record) {
  return record.lease_seconds !== null && record.lease_seconds_left < record.lease_seconds / 3;
}

/** The address of a list. */
function listOf(state, operation, age, cursor) {
  const isPlain = !operation && !age && !cursor;
  return isPlain ? ['records', state] : ['records', state, operation || ANY, age || ANY, cursor || ANY];
}

/** Stands for a filter that is not set. */
const ANY = '-';

const AGES = { '': 'any', '1min': '1 min', '10min': '10 min', '1h': '1 h', '1day': '1 day' };

/** The fields that choose a list. */
function filter(chosen, operation, age) {
  const option = ([value, title], current) =>
    element('option', { value, selected: value === current ? '' : null }, title);
  const choice = (name, options, current) =>
    element('select', { name }, Object.entries(options).map((entry) => option(entry, current)));
  return element('form', { class: 'filter', onsubmit: choose },
    element('label', {}, 'State ', choice('state', { ...STATES, all: 'all' }, chosen)),
    element('label', {}, 'Operation ', element('input', { name: 'operation', value: operation, size: 36 })),
    element('label', {}, 'Older than ', choice('age', AGES, age)),
    element('button', { 'data-action': 'filter' }, 'Show'));
}

function choose(event) {
  event.preventDefault();
  const { state, operation, age } = event.target.elements;
  const path = listOf(state.value, operation.value.trim(), age.value);
  window.location.hash = `#/${path.map(encodeURIComponent).join('/')}`;
}

/** The list of records of a state. */
export async function records(process, chosen = 'unknown', ...words) {
  const [operation = '', age = '', cursor = ''] = words.map((word) => (word === ANY ? '' : word));
  const query = { state: chosen === 'all' ? '' : chosen, operation, older_than: age, limit: 100, cursor };
  let isLooking = false;
  const page = await readUntilFound('records', query, hasRecords, () => {
    isLooking = true;
    say('No such record yet. Still looking …');
  });
  if (isLooking) say('');
  const hasLeases = page.records.some((found) => found.lease_seconds !== null);
  return [
    element('h2', {}, 'Records'),
    filter(chosen, operation, age),
    element('p', { class: 'soft' },
      'Records do not name their namespace: this list has the records of all gateways and workers on the store.'),
    table(hasLeases ? [...COLUMNS, LEASE] : COLUMNS, page.records,
      page.next ? 'None so far. The list goes on.' : 'There is no record in this list.'),
    damaged(page.damaged),
    page.next ? element('p', {}, link(listOf(chosen, operation, age, page.next), 'next page')) : null,
  ].filter((part) => part !== null);
}

/** Whether a page of records has something to show. */
export function hasRecords(page) {
  return page.records.length > 0 || page.damaged.length > 0;
}

function damaged(keys) {
  if (keys.length === 0) return null;
  return element('p', { class: 'alarm' }, `Records that cannot be read: ${keys.join(', ')}`);
}

function state(record) {
  const word = `${STATES[record.state]}${record.refuses_retries ? ', retries are refused' : ''}`;
  return element('span', { class: record.state === 'unknown' || record.state === 'dead' ? 'alarm' : null }, word);
}

/** One record, its audit events, and the actions that the API offers. */
export async function record(process, rk) {
  const [shown, audit] = await Promise.all([read(`records/${encodeURIComponent(rk)}`), history(rk)]);
  const actions = process.process === 'worker' ? { ...ACTIONS, done: MESSAGE_DONE } : ACTIONS;
  return [
    element('h2', {}, 'Record'),
    facts([
      ['record', element('code', {}, shown.urn)],
      ['operation', element('code', {}, shown.operation)],
      ['state', state(shown)],
      ['token', shown.token],
      ['attempt', shown.attempt],
      ['lease', lease(shown)],
      ['since', `${shown.since} (${duration(shown.age_seconds)})`],
      ['expires', shown.expires],
      ['answer', shown.answer_bytes === null ? null : `${shown.answer_bytes} bytes`],
    ]),
    element('p', { class: 'actions' },
      Object.entries(actions).map(([name, action]) => button(name, `${action.title} …`, () => decide(shown, action))),
      shown.answer_bytes === null ? null : button('answer', 'Show the answer', () => showAnswer(rk))),
    element('div', { id: 'answer' }),
    element('h2', {}, 'Audit events'),
    table([
      { title: 'time', cell: (event) => event.time },
      { title: 'who', cell: (event) => `${event.who.name} (${event.who.by})` },
      { title: 'action', cell: (event) => event.action },
      { title: 'token', cell: (event) => event.token, isNumber: true },
      { title: 'result', cell: (event) => (event.detail ? `${event.result}: ${event.detail}` : event.result) },
    ], audit.events, audit.text),
    audit.events.length > 0 && audit.text ? element('p', { class: 'soft' }, audit.text) : null,
    element('p', { class: 'soft' }, 'The log has the route of the request, in the lines with this operation id.'),
  ].filter((part) => part !== null);
}

/** The audit events of a record, and what the operator must know about them. */
async function history(rk) {
  try {
    const { events, is_complete: isComplete } = await read('audit', { record: rk, limit: 100 });
    const none = 'No operator has written to this record, as far as the audit file of this process knows.';
    const older = 'This list has the newest events. The audit file may have older ones of this record.';
    const isWhole = isComplete && events.length < 100;
    return { events, text: isWhole ? (events.length === 0 ? none : '') : older };
  } catch (error) {
    if (!(error instanceof CallError)) throw error;
    const isMissing = error.answer.error === 'no-audit-file';
    const text = isMissing ? 'This process has no audit file.' : `The audit events cannot be read: ${error.message}`;
    return { events: [], text };
  }
}

async function showAnswer(rk) {
  const { answer } = await read(`records/${encodeURIComponent(rk)}`, { answer: true });
  const text = !answer ? 'There is no answer.'
    : answer.too_large ? 'The response was too large to be stored.'
      : answer.bytes !== undefined ? bytes(answer.bytes)
        : `${answer.status}\n${headerLines(answer.headers)}\n\n${bytes(answer.body)}`;
  document.getElementById('answer').replaceChildren(element('pre', {}, text));
}

const input = (value, attributes = {}) => element('input', { value, ...attributes });

const ACTIONS = {
  done: {
    title: 'Resolve as done',
    text: 'The effect happened. Retries get the response below. This cannot be undone.',
    path: 'resolve',
    fields: () => [
      { name: 'status', label: 'Status', element: input('200', { type: 'number', min: 200, max: 599, required: '' }) },
      { name: 'type', label: 'Content-Type', element: input('application/json') },
      { name: 'body', label: 'Body', element: element('textarea', { rows: 6 }) },
    ],
    body: ({ status, type, body }) => ({
      outcome: 'done',
      status: Number(status),
      headers: type.trim() === '' ? [] : [['Content-Type', type.trim()]],
      body,
    }),
  },
  'not-done': {
    title: 'Resolve as not done',
    text: 'The effect did not happen. The next retry runs. If the effect did happen, it then happens twice.',
    path: 'resolve',
    fields: () => [],
    body: () => ({ outcome: 'not-done' }),
  },
  reopen: {
    title: 'Reopen',
    text: 'The record is open again: the next copy may run.',
    path: 'reopen',
    fields: () => [],
    body: () => ({}),
  },
  release: {
    title: 'Release',
    text: 'The attempt is given up. The next retry runs. If the effect did happen, it then happens twice.',
    path: 'release',
    fields: () => [],
    body: () => ({}),
  },
};

/** A message has no response, so a worker keeps only that its effect happened. */
const MESSAGE_DONE = {
  ...ACTIONS.done,
  text: 'The effect happened. The message is not processed again. This cannot be undone.',
  fields: () => [],
  body: () => ({ outcome: 'processed' }),
};

/** Asks, writes with the token that the operator saw, and shows the record again. */
async function decide(shown, action) {
  const values = await confirm({
    title: action.title,
    text: action.text,
    shown: [['record', shown.rk], ['operation', shown.operation], ['state', state(shown)], ['token', shown.token]],
    fields: action.fields(),
    button: `${action.title}, token ${shown.token}`,
  });
  if (values === null) return;
  say('');
  const path = `records/${encodeURIComponent(shown.rk)}/${action.path}`;
  try {
    await write(path, { token: shown.token, ...action.body(values) });
  } catch (error) {
    say(error.message);
    return;
  }
  window.dispatchEvent(new Event('hashchange'));
}
