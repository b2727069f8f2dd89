// Finds the page for the address: #/PAGE/ARGUMENT/…

import { read } from './api.js';
import { deadLetter, deadLetters } from './dead.js';
import { element, say } from './dom.js';
import { outbox } from './outbox.js';
import { overview } from './overview.js';
import { record, records } from './records.js';

const PAGES = {
  '': { title: 'Overview', show: overview, of: ['gateway', 'worker', 'relay'] },
  records: { title: 'Records', show: records, of: ['gateway', 'worker'] },
  'dead-letters': { title: 'Dead letters', show: deadLetters, of: ['worker'] },
  outbox: { title: 'Outbox', show: outbox, of: ['relay'] },
  record: { title: 'Record', show: record, of: [] },
  'dead-letter': { title: 'Dead letter', show: deadLetter, of: [] },
};

let shown = 0;

async function show() {
  // A page that arrives after a later one is thrown away.
  shown += 1;
  const own = shown;
  const [name, ...words] = window.location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  const page = Object.hasOwn(PAGES, name) ? PAGES[name] : PAGES[''];
  const place = document.getElementById('page');
  say('');
  // The buttons of the page before would write something that the address does not name.
  place.replaceChildren(element('p', { class: 'soft', role: 'status' }, 'Loading …'));
  place.setAttribute('aria-busy', 'true');
  delete document.body.dataset.ready;
  document.title = `${page.title} – Hapax`;
  try {
    const process = await read('policy');
    showHead(process, name);
    document.title = `${page.title} – ${process.process} ${process.namespace} – Hapax`;
    const content = await page.show(process, ...words);
    if (own !== shown) return;
    place.replaceChildren(...content);
    place.removeAttribute('aria-busy');
    if (own > 1) focusHeading(place);
    document.body.dataset.ready = name || 'overview';
  } catch (error) {
    if (own !== shown) return;
    place.replaceChildren();
    place.removeAttribute('aria-busy');
    say(error.message);
  }
}

/** The next key begins at the new page, and a screen reader reads its heading. */
function focusHeading(place) {
  const heading = place.querySelector('h2');
  if (heading === null) return;
  heading.tabIndex = -1;
  heading.focus();
}

function showHead(process, current) {
  const words = `${process.process} ${process.version}, namespace ${process.namespace}`;
  document.getElementById('process').textContent = words;
  const pages = Object.entries(PAGES).filter(([, page]) => page.of.includes(process.process));
  document.getElementById('pages').replaceChildren(...pages.map(([name, page]) => element('a', {
    href: `#/${name}`,
    'aria-current': name === current ? 'page' : null,
  }, page.title)));
}

window.addEventListener('hashchange', show);
show();
window.addEventListener('unhandledrejection', (event) => say(event.reason?.message ?? String(event.reason)));
