// The first page: what is open, how the process does, and what the last hour was like.

import { metrics, read, readUntilFound, readiness } from './api.js';
import { chart } from './charts.js';
import { duration, element, facts, link, table } from './dom.js';
import { hasRecords, isNearItsEnd } from './records.js';

/** How often the page reads what changes, in milliseconds. */
const INTERVAL = 10_000;

const LAYERS = { gate: 'answered from a record', ledger: 'already in the ledger', relay: 'recognized by the broker' };

/** The layers of each process. */
const OWN_LAYERS = { gateway: ['gate'], worker: ['gate', 'ledger'], relay: ['relay'] };

/** The page. `process` is the policy that the process reports. */
export async function overview(process) {
  return [
    element('h2', {}, 'Open'),
    element('div', { class: 'counts' }, await openCounts(process, await metrics())),
    element('h2', {}, 'The last hour'),
    await refreshed('div', { class: 'charts' }, async () => charts(process, await read('history'))),
    element('h2', {}, 'State of the process'),
    await refreshed('div', { id: 'health' }, () => health(process)),
    element('h2', {}, 'Copies that had no second effect'),
    await refreshed('div', {}, async () => [caught(OWN_LAYERS[process.process], await metrics())]),
    element('h2', {}, 'Settings'),
    facts(settings(process)),
  ];
}

/** An element whose content is made anew as long as the page shows it. */
async function refreshed(name, attributes, make) {
  const place = element(name, attributes, await make());
  const again = async () => {
    if (!place.isConnected) return;
    const made = await make().catch((error) => [element('p', { class: 'alarm' }, error.message)]);
    place.replaceChildren(...made);
    setTimeout(again, INTERVAL);
  };
  setTimeout(again, INTERVAL);
  return place;
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
    counts.push(countRecords('in-progress', 'in progress', false, leases));
    counts.push(countRecords('unknown', 'unknown', true, () => []));
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
function countRecords(state, title, isAlarm, more) {
  const path = ['records', state];
  const place = element('div', { class: 'counts' }, count(title, '…', null, false, path));
  const looking = () => place.replaceChildren(count(`${title}: none yet, still looking`, '…', null, false, path));
  readUntilFound('records', { state, limit: 500 }, hasRecords, looking).then((page) => {
    // Records that cannot be read, and those behind the end of the search, may have any state.
    const isOpen = page.records.length === 0 && (page.next || page.damaged.length > 0);
    const shown = isOpen ? `${title}: none found, but not all records were read` : title;
    const made = count(shown, page.records.length, page.next, isAlarm, path);
    if (isAlarm && isOpen) made.className = 'count alarm';
    place.replaceChildren(made, ...more(page));
  }, (error) => place.replaceChildren(element('p', { class: 'alarm' }, `${title}: ${error.message}`)));
  return place;
}

/** The leases that nobody renews in time. An attempt renews its lease after each third of it. */
function leases(page) {
  const near = page.records.filter(isNearItsEnd).length;
  return [count('leases near their end', near, page.next, true, ['records', 'in-progress'])];
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

const CALLS = { new: 'new', replayed: 'replayed', refused: 'refused', unknown: 'unknown' };
const EVENTS = { new: 'published', replayed: 'published before', refused: 'refused', unknown: 'unknown' };

function charts(process, { minutes }) {
  const titles = process.process === 'relay' ? EVENTS : CALLS;
  const counts = Object.entries(titles).map(([name, title]) => {
    const value = (minute) => minute[name];
    const sum = minutes.reduce((all, minute) => all + value(minute), 0);
    return chart(name, title, minutes, { value, sum, isAlarm: name === 'unknown' });
  });
  if (process.process === 'relay') return counts;
  const latest = minutes.findLast((minute) => minute.p99_seconds !== null)?.p99_seconds;
  const slow = { value: (minute) => minute.p99_seconds, shown: milliseconds, sum: milliseconds(latest) };
  return [...counts, chart('latency', 'for 99 % of the calls', minutes, slow)];
}

function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  return seconds < 1 ? `${Number((1000 * seconds).toPrecision(3))} ms` : `${Number(seconds.toPrecision(3))} s`;
}

/** Whether the process can work, and what it cannot reach. */
async function health(process) {
  const [ready, samples] = await Promise.all([readiness(), metrics()]);
  const alarm = (text, isBad) => (isBad ? element('span', { class: 'alarm' }, text) : text);
  const store = storeWords(samples);
  const rows = [
    ['ready', alarm(ready.isReady ? 'yes' : ready.text, !ready.isReady)],
    ['store', alarm(store.text, store.isBad)],
  ];
  if (process.process !== 'relay') {
    const errors = upstreamErrors(samples);
    rows.push([process.process === 'gateway' ? 'API' : 'target', alarm(errors || 'no errors since the start', errors)]);
    const depth = total(samples, 'hapax_spill_depth');
    const age = duration(total(samples, 'hapax_spill_oldest_seconds'));
    const waiting = `${depth} answers that the store has not confirmed, the oldest for ${age}`;
    rows.push(['journal', alarm(depth === 0 ? 'empty' : waiting, depth > 0)]);
  }
  return [facts(rows)];
}

function storeWords(samples) {
  if (total(samples, 'hapax_breaker_open') > 0) {
    return { text: 'it does not reply, so requests with new keys are refused', isBad: true };
  }
  const [refused, warned] = ['refuse', 'warn'].map((severity) => total(samples, 'hapax_store_findings', { severity }));
  if (refused + warned === 0) return { text: 'no findings', isBad: false };
  return { text: `${refused + warned} findings of its check; the log has their text`, isBad: true };
}

function upstreamErrors(samples) {
  const errors = samples.filter((sample) => sample.name === 'hapax_gateway_upstream_errors_total' && sample.value > 0);
  const words = errors.map((sample) => `${sample.value} ${sample.labels.kind}`).join(', ');
  return words && `${words} since the start`;
}

function caught(layers, samples) {
  return table([
    { title: 'layer', cell: (layer) => layer },
    { title: 'a copy was', cell: (layer) => LAYERS[layer] },
    { title: 'since the start', cell: (layer) => total(samples, 'hapax_caught_total', { layer }), isNumber: true },
  ], layers, '');
}
