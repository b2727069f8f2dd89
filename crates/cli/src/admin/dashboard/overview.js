// The first page: what is open, what each layer caught, and what the process does.

import { metrics, read, readUntilFound } from './api.js';
import { duration, element, facts, link, table } from './dom.js';
import { hasRecords } from './records.js';

/** How long the rates are measured. */
const INTERVAL = 2000;

const LAYERS = { gate: 'answered from a record', ledger: 'already in the ledger', relay: 'recognized by the broker' };

/** The layers of each process. */
const OWN_LAYERS = { gateway: ['gate'], worker: ['gate', 'ledger'], relay: ['relay'] };

/** The page. `process` is the policy that the process reports. */
export async function overview(process) {
  const samples = await metrics();
  const rates = element('div', {}, element('p', { class: 'soft' }, 'measuring …'));
  showRates(rates, samples);
  return [
    element('h2', {}, 'Open'),
    element('div', { class: 'counts' }, await openCounts(process, samples)),
    element('h2', {}, 'Rates'),
    rates,
    element('h2', {}, 'Copies that had no second effect'),
    caught(OWN_LAYERS[process.process], samples),
    element('h2', {}, 'Settings'),
    facts(settings(process)),
  ];
}

/** The names and values of an object and of the objects in it. */
function settings(object) {
  return Object.entries(object).flatMap(([name, value]) => {
    if (Array.isArray(value)) return [[name, value.length === 0 ? 'none' : JSON.stringify(value)]];
    if (typeof value === 'object' && value !== null) return settings(value);
    return [[name.replaceAll('_', ' '), value === null ? null : String(value)]];
  });
}

async function openCounts(process, samples) {
  const counts = [];
  if (process.process !== 'relay') {
    for (const [state, title, isAlarm] of [['in-progress', 'in progress', false], ['unknown', 'unknown', true]]) {
      counts.push(countRecords(state, title, isAlarm));
    }
  }
  if (process.process === 'worker') {
    const page = await read('dead-letters', { limit: 500 }).catch(() => null);
    if (page) counts.push(count('dead letters', page.dead_letters.length, page.next, true, ['dead-letters']));
    counts.push(count('parked keys', total(samples, 'hapax_worker_parked'), null, true, ['dead-letters']));
  }
  if (process.process === 'relay') {
    const { counts: outbox } = await read('outbox', { limit: 1 });
    const age = duration(outbox.oldest_seconds);
    const title = age ? `open events, the oldest for ${age}` : 'open events';
    counts.push(count(title, outbox.open, null, false, ['outbox']));
    counts.push(count('parked keys', outbox.parked_keys, null, true, ['outbox']));
  }
  return counts;
}

/** A number of records. It appears when the first of them is found, or the list ends. */
function countRecords(state, title, isAlarm) {
  const path = ['records', state];
  const place = element('div', {}, count(title, '…', null, false, path));
  const looking = () => place.replaceChildren(count(`${title}: none yet, still looking`, '…', null, false, path));
  readUntilFound('records', { state, limit: 500 }, hasRecords, looking).then((page) => {
    // Records that cannot be read, and those behind the end of the search, may have any state.
    const isOpen = page.records.length === 0 && (page.next || page.damaged.length > 0);
    const shown = isOpen ? `${title}: none found, but not all records were read` : title;
    const made = count(shown, page.records.length, page.next, isAlarm, path);
    if (isAlarm && isOpen) made.className = 'count alarm';
    place.replaceChildren(made);
  }, (error) => place.replaceChildren(element('p', { class: 'alarm' }, `${title}: ${error.message}`)));
  return place;
}

/** A number and its link. A list that goes on has at least so many. */
function count(title, number, next, isAlarm, path) {
  const shown = next ? `${number} or more` : number;
  const kind = isAlarm && number > 0 ? 'count alarm' : 'count';
  return element('div', { class: kind }, element('strong', {}, shown), link(path, title));
}

function total(samples, name, labels = {}) {
  const fits = (sample) => Object.entries(labels).every(([label, value]) => sample.labels[label] === value);
  const found = samples.filter((sample) => sample.name === name && fits(sample));
  return found.reduce((sum, sample) => sum + sample.value, 0);
}

function caught(layers, samples) {
  return table([
    { title: 'layer', cell: (layer) => layer },
    { title: 'a copy was', cell: (layer) => LAYERS[layer] },
    { title: 'since the start', cell: (layer) => total(samples, 'hapax_caught_total', { layer }), isNumber: true },
  ], layers, '');
}

const RATES = [
  ['hapax_gateway_requests_total', 'requests'],
  ['hapax_calls_total', 'calls of the gate'],
  ['hapax_worker_attempts_total', 'attempts'],
  ['hapax_relay_events_total', 'publications'],
  ['hapax_caught_total', 'copies caught'],
];

/** Replaces the content by rates when the interval is over. */
function showRates(place, before) {
  const begun = performance.now();
  setTimeout(async () => {
    if (!place.isConnected) return;
    const after = await metrics().catch(() => null);
    if (after === null) return;
    const seconds = (performance.now() - begun) / 1000;
    const names = RATES.filter(([name]) => after.some((sample) => sample.name === name));
    const rise = (name) => Math.max(0, total(after, name) - total(before, name));
    const rows = names.map(([name, title]) => ({ title, rate: rise(name) / seconds }));
    place.replaceChildren(table([
      { title: '', cell: (row) => row.title },
      { title: 'a second', cell: (row) => row.rate.toFixed(1), isNumber: true },
    ], rows, 'This process has no rates.'));
  }, INTERVAL);
}
